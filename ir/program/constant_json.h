// Constants in the JSON of programs: bytes as base64.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "ir/base/json_reader.h"
#include "ir/graph/graph.h"

namespace pipeshard {

std::string toBase64(const std::vector<std::byte>& bytes);
// Error(kConfiguration) as JsonReader's for what is no base64.
std::vector<std::byte> fromBase64(const JsonReader& json);

// {"type": "int64", "shape": [1], "base64": "AAAAAAAAAAA="}. The Json stands for all of it.
Json constantToJson(const Constant& constant);
// Errors likewise; also where the bytes are not as many as type and shape say.
Constant constantFromJson(const JsonReader& json);

}  // namespace pipeshard
