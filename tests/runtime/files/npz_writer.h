// Writes .npz archives for tests, as numpy does and as it never would.
#pragma once

#include <zip.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace pipeshard {

// A .npy file: magic, version, padded header, content.
inline std::string npyFile(const std::string& header, const std::string& content, int version = 1) {
  std::string text = header;
  while ((text.size() + 11) % 64 != 0) text += ' ';
  text += '\n';
  std::string bytes = "\x93NUMPY";
  bytes += static_cast<char>(version);
  bytes += '\0';
  const size_t length_bytes = version == 1 ? 2 : 4;
  for (size_t i = 0; i < length_bytes; ++i) bytes += static_cast<char>(text.size() >> (8 * i));
  return bytes + text + content;
}

template <typename T>
std::string bytesOf(const std::vector<T>& elements) {
  std::string bytes(elements.size() * sizeof(T), '\0');
  std::memcpy(bytes.data(), elements.data(), bytes.size());
  return bytes;
}

// numpy's own header for a C-ordered array, e.g. npyArray("<f4", "(2, 3)", bytesOf(elements)).
inline std::string npyArray(const std::string& type, const std::string& shape, const std::string& content,
                            bool fortran = false) {
  return npyFile("{'descr': '" + type + "', 'fortran_order': " + (fortran ? "True" : "False") +
                     ", 'shape': " + shape + ", }",
                 content);
}

// Members by name, compressed or stored.
inline bool writeNpz(const std::string& path, const std::vector<std::pair<std::string, std::string>>& members,
                     bool compress = true) {
  zip_t* archive = zip_open(path.c_str(), ZIP_CREATE | ZIP_TRUNCATE, nullptr);
  if (archive == nullptr) return false;
  for (const auto& [name, bytes] : members) {
    zip_source_t* source = zip_source_buffer(archive, bytes.data(), bytes.size(), 0);
    const zip_int64_t index = zip_file_add(archive, name.c_str(), source, ZIP_FL_OVERWRITE);
    if (index < 0) return false;
    zip_set_file_compression(archive, static_cast<zip_uint64_t>(index),
                             compress ? ZIP_CM_DEFLATE : ZIP_CM_STORE, 0);
  }
  return zip_close(archive) == 0;
}

}  // namespace pipeshard
