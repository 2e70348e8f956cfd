// Reading a tokenizer.json.
#pragma once

#include <string>

#include "runtime/tokenizer/tokenizer.h"

namespace pipeshard {

// Errors: kMissingInput, kBadModel naming the field, what it holds, and what is supported.
Tokenizer readTokenizer(const std::string& path);

}  // namespace pipeshard
