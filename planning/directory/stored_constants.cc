#include "planning/directory/stored_constants.h"

#include <filesystem>
#include <map>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "ir/program/program_json.h"
#include "runtime/files/durable_folder.h"
#include "runtime/files/tensor_file.h"
#include "runtime/files/weights.h"

namespace pipeshard {
namespace {

namespace fs = std::filesystem;

const Constant* largeConstant(const Buffer& buffer) {
  const auto* constant = buffer.source ? std::get_if<Constant>(&*buffer.source) : nullptr;
  return constant != nullptr && constant->bytes.size() > kMostInlineBytes ? constant : nullptr;
}

// The tensors of the file, by their names in it.
class StoredConstants {
 public:
  // The name of the tensor that is equal to this one; it is added where there is none.
  const std::string& add(const std::string& weight, const Constant& constant) {
    std::vector<std::string>& names = of_weights_[weight];
    for (const std::string& name : names) {
      if (tensors_.at(name) == constant) return name;
    }
    std::string name = weight;
    for (int copy = 1; tensors_.contains(name); ++copy) name = fmt::format("{}#{}", weight, copy);
    tensors_.emplace(name, constant);
    return names.emplace_back(std::move(name));
  }

  bool empty() const { return tensors_.empty(); }

  void write(const std::string& path) const {
    std::vector<TensorView> views;
    for (const auto& [name, constant] : tensors_)
      views.push_back({name, constant.data_type, constant.shape, constant.bytes.data()});
    writeTensorFile(path, views);
  }

 private:
  std::map<std::string, Constant> tensors_;
  std::map<std::string, std::vector<std::string>> of_weights_;  // names of tensors, by weight
};

}  // namespace

void storeConstants(ProgramsBySize& programs, const std::string& folder) {
  struct Place {
    Program* program;
    size_t buffer;
    std::string name;
  };
  std::vector<Place> places;
  StoredConstants constants;
  for (auto& [size, emitted] : programs) {
    for (ProgramKind& kind : emitted.set.kinds) {
      size_t next = 0;
      for (const Buffer& buffer : std::as_const(kind.program.buffers)) {
        const size_t b = next++;
        const Constant* constant = largeConstant(buffer);
        if (constant != nullptr)
          places.push_back({&kind.program, b, constants.add(sourceName(buffer), *constant)});
      }
    }
  }
  if (constants.empty()) return;
  const fs::path path = fs::path(folder) / kStoredConstantsFile;
  makeFolder(path.parent_path());
  constants.write(path.string());
  const TensorFile file = TensorFile::open(path.string());
  for (const Place& place : places) {
    const TensorEntry& entry = *file.find(place.name);
    Buffer& buffer = place.program->buffers[place.buffer];
    buffer.source_type = entry.data_type;
    buffer.source = WeightReference{kStoredConstantsFile, entry.offset, entry.length};
  }
}

}  // namespace pipeshard
