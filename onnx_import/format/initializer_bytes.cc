#include "onnx_import/format/initializer_bytes.h"

#include <filesystem>
#include <fstream>

namespace pipeshard {

std::optional<std::vector<std::byte>> initializerBytes(const Graph& graph, ValueId id) {
  const Initializer& initializer = graph.initializers.at(id);
  if (const auto* constant = std::get_if<Constant>(&initializer)) return constant->bytes;
  const auto& reference = std::get<WeightReference>(initializer);
  if (reference.drawn) return std::nullopt;
  std::ifstream file(std::filesystem::path(graph.directory) / reference.location, std::ios::binary);
  std::vector<std::byte> bytes(reference.length);
  file.seekg(static_cast<std::streamoff>(reference.offset));
  file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  return file ? std::optional(std::move(bytes)) : std::nullopt;
}

void inlineIntegers(Graph& graph, uint64_t most_bytes) {
  for (auto& [id, initializer] : graph.initializers) {
    const DataType type = graph.dataType(id);
    const auto* reference = std::get_if<WeightReference>(&initializer);
    const bool is_index = type == DataType::kInt64 || type == DataType::kInt32 || type == DataType::kBool;
    if (reference == nullptr || !is_index || reference->length > most_bytes) continue;
    std::optional<std::vector<std::byte>> bytes = initializerBytes(graph, id);
    if (bytes) initializer = Constant{type, graph.shape(id), std::move(*bytes)};
  }
}

}  // namespace pipeshard
