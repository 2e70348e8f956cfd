// The version and commit that this build was made of; runtime/identity/source_version.cmake writes the
// definitions when it is built.
#pragma once

namespace pipeshard {

extern const char* const kSourceVersion;  // "0.1.0"
// In hexadecimal; "" where there was no git, or where files differed from the commit.
extern const char* const kSourceCommit;

}  // namespace pipeshard
