#include <fstream>

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "onnx_import/format/initializer_bytes.h"
#include "onnx_import/format/reader.h"
#include "tests/onnx_import/model_files.h"

namespace pipeshard {
namespace {

namespace fs = std::filesystem;
using testing::floatTensor;
using testing::ModelFolder;
using testing::reluModel;
using Entries = std::vector<std::pair<std::string, std::string>>;

constexpr auto kBadModel = ErrorCode::kBadModel;

// A model whose initializer "w", float32[4], is external with these entries.
onnx::ModelProto modelWith(const Entries& entries) {
  onnx::ModelProto model = reluModel();
  onnx::TensorProto tensor = floatTensor("w", {4}, {});
  tensor.set_data_location(onnx::TensorProto::EXTERNAL);
  for (const auto& [key, value] : entries) {
    auto* entry = tensor.add_external_data();
    entry->set_key(key);
    entry->set_value(value);
  }
  *model.mutable_graph()->add_initializer() = tensor;
  return model;
}

class ExternalDataTest : public ::testing::Test {
 protected:
  Graph read(const Entries& entries, const ReadOptions& options = {}) {
    return readModel(folder_.write("model/m.onnx", modelWith(entries)), options);
  }

  void SetUp() override {
    folder_.write("model/w.bin", std::string(64, 'w'));
    folder_.write("secret.bin", std::string(64, 's'));
  }

  ModelFolder folder_;
};

TEST_F(ExternalDataTest, BecomesAReferenceWithoutBeingRead) {
  const Graph graph = read({{"location", "w.bin"}, {"offset", "16"}, {"length", "16"}});
  const ValueId w = findValue(graph, "w");
  const auto* reference = std::get_if<WeightReference>(&graph.initializers.at(w));
  ASSERT_NE(reference, nullptr);
  EXPECT_EQ(*reference, (WeightReference{"w.bin", 16, 16}));
  EXPECT_EQ(graph.shape(w), Shape({4}));
  EXPECT_TRUE(fs::exists(fs::path(graph.directory) / "w.bin"));
}

TEST_F(ExternalDataTest, AMissingOffsetIsZero) {
  const Graph graph = read({{"location", "w.bin"}, {"length", "16"}});
  EXPECT_EQ(std::get<WeightReference>(graph.initializers.at(findValue(graph, "w"))).offset, 0u);
}

TEST_F(ExternalDataTest, AMissingLengthMeansTheRestOfTheFile) {
  EXPECT_EQ(
      std::get<WeightReference>(read({{"location", "w.bin"}, {"offset", "48"}}).initializers.begin()->second)
          .length,
      16u);
  EXPECT_ERROR(read({{"location", "w.bin"}, {"offset", "40"}}), kBadModel, "'w'", "24 bytes", "need 16");
}

TEST_F(ExternalDataTest, AMissingFileIsMissingInputUnlessAllowed) {
  EXPECT_ERROR(read({{"location", "gone.bin"}}), ErrorCode::kMissingInput, "'w'", "gone.bin");
  ReadOptions options;
  options.require_external_data = false;
  EXPECT_EQ(std::get<WeightReference>(read({{"location", "gone.bin"}}, options).initializers.begin()->second)
                .length,
            16u);
}

TEST_F(ExternalDataTest, PathsOutOfTheFolderAreRefused) {
  EXPECT_ERROR(read({{"location", "../secret.bin"}}), kBadModel, "'w'", "'..'");
  EXPECT_ERROR(read({{"location", "a/../../secret.bin"}}), kBadModel, "'..'");
  EXPECT_ERROR(read({{"location", folder_.file("secret.bin")}}), kBadModel, "absolute");
  EXPECT_ERROR(read({{"location", ""}}), kBadModel, "without a location");
  EXPECT_ERROR(read({}), kBadModel, "without a location");
  EXPECT_ERROR(read({{"location", std::string("w.bin\0x", 7)}}), kBadModel, "NUL");
  EXPECT_ERROR(read({{"location", "*/_ORT_MEM_ADDR_/*"}}), kBadModel, "address in memory");
}

TEST_F(ExternalDataTest, KeysAreKnownAndOccurOnce) {
  EXPECT_ERROR(read({{"location", "w.bin"}, {"location", "v.bin"}}), kBadModel, "repeats", "location");
  EXPECT_ERROR(read({{"location", "w.bin"}, {"basepath", "/"}}), kBadModel, "'basepath'");
}

TEST_F(ExternalDataTest, OffsetAndLengthAreCheckedWithoutOverflow) {
  EXPECT_ERROR(read({{"location", "w.bin"}, {"offset", "-1"}, {"length", "16"}}), kBadModel, "'-1'");
  EXPECT_ERROR(read({{"location", "w.bin"}, {"offset", "1e3"}}), kBadModel, "'1e3'");
  EXPECT_ERROR(read({{"location", "w.bin"}, {"length", "12"}}), kBadModel, "12 bytes", "need 16");
  EXPECT_ERROR(read({{"location", "w.bin"}, {"offset", "56"}, {"length", "16"}}), kBadModel, "only 64");
  EXPECT_ERROR(read({{"location", "w.bin"}, {"offset", "18446744073709551608"}, {"length", "16"}}), kBadModel,
               "only 64");
  EXPECT_ERROR(read({{"location", "w.bin"}, {"offset", "99999999999999999999"}}), kBadModel, "64-bit");
}

TEST_F(ExternalDataTest, ALinkOutOfTheFolderIsRefused) {
  fs::create_symlink(folder_.file("secret.bin"), folder_.file("model/link.bin"));
  EXPECT_ERROR(read({{"location", "link.bin"}, {"length", "16"}}), kBadModel, "link.bin", "outside");
}

TEST_F(ExternalDataTest, ALinkedFolderOutOfTheFolderIsRefused) {
  folder_.write("other/v.bin", std::string(64, 'v'));
  fs::create_directory_symlink(folder_.file("other"), folder_.file("model/sub"));
  EXPECT_ERROR(read({{"location", "sub/v.bin"}, {"length", "16"}}), kBadModel, "outside");
}

TEST_F(ExternalDataTest, ALinkUnderTheExtraRootIsAllowed) {
  fs::create_symlink(folder_.file("secret.bin"), folder_.file("model/link.bin"));
  ReadOptions options;
  options.external_data_root = folder_.file("");
  EXPECT_EQ(read({{"location", "link.bin"}, {"length", "16"}}, options).initializers.size(), 1u);
}

TEST_F(ExternalDataTest, ACacheOfLinkedBlobsIsAllowed) {
  // The layout of model caches: both the model and its data are links into one folder of blobs.
  folder_.write("blobs/aa", modelWith({{"location", "m.onnx.data"}, {"length", "16"}}));
  folder_.write("blobs/bb", std::string(16, 'b'));
  fs::create_directories(folder_.file("snapshot"));
  fs::create_symlink(folder_.file("blobs/aa"), folder_.file("snapshot/m.onnx"));
  fs::create_symlink(folder_.file("blobs/bb"), folder_.file("snapshot/m.onnx.data"));
  EXPECT_EQ(readModel(folder_.file("snapshot/m.onnx")).initializers.size(), 1u);
}

TEST_F(ExternalDataTest, ALinkToAModelFindsTheDataBesideTheModel) {
  folder_.write("model/m.onnx", modelWith({{"location", "w.bin"}, {"length", "16"}}));
  fs::create_symlink(folder_.file("model/m.onnx"), folder_.file("link.onnx"));
  const Graph graph = readModel(folder_.file("link.onnx"));
  EXPECT_TRUE(fs::exists(fs::path(graph.directory) / "w.bin")) << graph.directory;
}

TEST_F(ExternalDataTest, AHardLinkToAFileOfTheModelsOwnerIsAllowed) {
  fs::create_hard_link(folder_.file("secret.bin"), folder_.file("model/hard.bin"));
  EXPECT_EQ(read({{"location", "hard.bin"}, {"length", "16"}}).initializers.size(), 1u);
}

TEST_F(ExternalDataTest, AHardLinkToAFileOfAnotherUserIsRefused) {
  constexpr uid_t kAnother = 54321;
  if (::chown(folder_.file("secret.bin").c_str(), kAnother, -1) != 0)
    GTEST_SKIP() << "files of another user can be made by root only";
  fs::create_hard_link(folder_.file("secret.bin"), folder_.file("model/hard.bin"));
  EXPECT_ERROR(read({{"location", "hard.bin"}, {"length", "16"}}), kBadModel, "hard.bin", "hard link",
               "54321");
  fs::remove(folder_.file("secret.bin"));  // its only name now: put there by the other user, for all to use
  EXPECT_EQ(read({{"location", "hard.bin"}, {"length", "16"}}).initializers.size(), 1u);
}

TEST_F(ExternalDataTest, OnlyRegularFilesAreData) {
  ASSERT_EQ(::mkfifo(folder_.file("model/pipe").c_str(), 0600), 0);
  EXPECT_ERROR(read({{"location", "pipe"}, {"length", "16"}}), kBadModel, "no regular file");
  fs::create_directory(folder_.file("model/folder"));
  EXPECT_ERROR(read({{"location", "folder"}, {"length", "16"}}), kBadModel, "no regular file");
}

TEST_F(ExternalDataTest, TensorsInAttributesObeyTheSameRules) {
  onnx::ModelProto model = reluModel();
  auto* node = model.mutable_graph()->add_node();
  node->set_op_type("Constant");
  node->add_output("c");
  auto* attribute = node->add_attribute();
  attribute->set_name("value");
  attribute->set_type(onnx::AttributeProto::TENSOR);
  *attribute->mutable_t() = modelWith({{"location", "../secret.bin"}}).graph().initializer(0);
  EXPECT_ERROR(readModel(folder_.write("model/m.onnx", model)), kBadModel, "attribute 'value'", "'..'");
}

TEST_F(ExternalDataTest, TensorsOfTrainingInfoAndSparseTensorsObeyTheSameRules) {
  onnx::ModelProto model = reluModel();
  *model.add_training_info()->mutable_algorithm()->add_initializer() =
      modelWith({{"location", "/etc/passwd"}}).graph().initializer(0);
  EXPECT_ERROR(readModel(folder_.write("model/m.onnx", model)), kBadModel, "absolute");
  model = reluModel();
  *model.mutable_graph()->add_sparse_initializer()->mutable_values() =
      modelWith({{"location", "/etc/passwd"}}).graph().initializer(0);
  EXPECT_ERROR(readModel(folder_.write("model/m.onnx", model)), kBadModel, "absolute");
}

TEST_F(ExternalDataTest, ExternalAndInlineDataTogetherAreRefused) {
  onnx::ModelProto model = modelWith({{"location", "w.bin"}, {"length", "16"}});
  model.mutable_graph()->mutable_initializer(0)->set_raw_data(std::string(16, 'r'));
  EXPECT_ERROR(readModel(folder_.write("model/m.onnx", model)), kBadModel, "both inline and external");
}

TEST_F(ExternalDataTest, InlineWeightsCanBecomeReferencesIntoTheModel) {
  onnx::ModelProto model = reluModel();
  onnx::TensorProto big = floatTensor("big", {1000}, {});
  big.set_raw_data(std::string(4000, '\0'));
  (*big.mutable_raw_data())[8] = 'q';
  *model.mutable_graph()->add_initializer() = floatTensor("small", {2}, {1, 2});
  *model.mutable_graph()->add_initializer() = big;
  const std::string path = folder_.write("model/m.onnx", model);
  ReadOptions options;
  options.inline_weight_bytes = 1024;
  const Graph graph = readModel(path, options);
  EXPECT_NE(graph.constant(findValue(graph, "small")), nullptr);
  const auto& reference = std::get<WeightReference>(graph.initializers.at(findValue(graph, "big")));
  EXPECT_EQ(reference.location, "m.onnx");
  EXPECT_EQ(reference.length, 4000u);
  std::ifstream file(path, std::ios::binary);
  file.seekg(static_cast<std::streamoff>(reference.offset));
  std::string bytes(reference.length, ' ');
  file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  EXPECT_EQ(bytes, big.raw_data());
  EXPECT_NE(readModel(path).constant(findValue(readModel(path), "big")), nullptr);
}

// Packed numbers lie in the file as raw data do.
TEST_F(ExternalDataTest, InlineFloatsAndDoublesBecomeReferencesToo) {
  onnx::ModelProto model = reluModel();
  std::vector<float> floats(1000);
  for (size_t i = 0; i < floats.size(); ++i) floats[i] = static_cast<float>(i) / 7;
  *model.mutable_graph()->add_initializer() = floatTensor("floats", {10, 100}, floats);
  onnx::TensorProto& doubles = *model.mutable_graph()->add_initializer();
  doubles.set_name("doubles");
  doubles.set_data_type(onnx::TensorProto::DOUBLE);
  doubles.add_dims(500);
  for (int i = 0; i < 500; ++i) doubles.add_double_data(i / 7.0);
  const std::string path = folder_.write("model/m.onnx", model);
  ReadOptions options;
  options.inline_weight_bytes = 1024;
  const Graph graph = readModel(path, options), whole = readModel(path);
  for (const char* name : {"floats", "doubles"}) {
    const auto& reference = std::get<WeightReference>(graph.initializers.at(findValue(graph, name)));
    EXPECT_EQ(reference.location, "m.onnx");
    std::vector<std::byte> bytes(reference.length);
    std::ifstream file(path, std::ios::binary);
    file.seekg(static_cast<std::streamoff>(reference.offset));
    file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    EXPECT_EQ(bytes, whole.constant(findValue(whole, name))->bytes) << name;
  }
}

TEST_F(ExternalDataTest, InlineNumbersOfAnotherTypeOrInTwoFieldsAreRefused) {
  ReadOptions options;
  options.inline_weight_bytes = 1024;
  const onnx::TensorProto good = floatTensor("w", {1000}, std::vector<float>(1000, 1.5F));
  const auto readWith = [&](const std::function<void(onnx::TensorProto&)>& change) {
    onnx::ModelProto model = reluModel();
    onnx::TensorProto& tensor = *model.mutable_graph()->add_initializer();
    tensor = good;
    change(tensor);
    return readModel(folder_.write("model/m.onnx", model), options);
  };
  EXPECT_ERROR(readWith([](onnx::TensorProto& t) { t.set_data_type(onnx::TensorProto::INT32); }), kBadModel,
               "'w'", "another type");
  EXPECT_ERROR(readWith([](onnx::TensorProto& t) { t.set_raw_data(std::string(4000, 'r')); }), kBadModel,
               "'w'", "more than one field");
  EXPECT_ERROR(readWith([](onnx::TensorProto& t) { t.set_dims(0, 999); }), kBadModel, "'w'", "4000 bytes");
}

TEST_F(ExternalDataTest, SmallIntegersComeIn) {
  onnx::ModelProto model = modelWith({{"location", "w.bin"}, {"length", "16"}});
  onnx::TensorProto indices = model.graph().initializer(0);
  indices.set_name("indices");
  indices.set_data_type(onnx::TensorProto::INT32);
  *model.mutable_graph()->add_initializer() = indices;
  folder_.write("model/w.bin", std::string("\1\0\0\0\2\0\0\0\3\0\0\0\4\0\0\0", 16));
  Graph graph = readModel(folder_.write("model/m.onnx", model));
  inlineIntegers(graph, 15);
  EXPECT_EQ(graph.constant(findValue(graph, "indices")), nullptr);  // too large
  inlineIntegers(graph, 16);
  const Constant* constant = graph.constant(findValue(graph, "indices"));
  ASSERT_NE(constant, nullptr);
  EXPECT_EQ(integerElements(*constant), (std::vector<int64_t>{1, 2, 3, 4}));
  EXPECT_EQ(graph.constant(findValue(graph, "w")),
            nullptr);  // numbers that may be trained stay where they are
}

TEST_F(ExternalDataTest, IntegersWithoutTheirFileStayReferences) {
  onnx::ModelProto model = modelWith({{"location", "w.bin"}, {"length", "16"}});
  model.mutable_graph()->mutable_initializer(0)->set_data_type(onnx::TensorProto::INT32);
  Graph graph = readModel(folder_.write("model/m.onnx", model));
  fs::remove(fs::path(graph.directory) / "w.bin");
  inlineIntegers(graph, 16);
  EXPECT_EQ(graph.constant(findValue(graph, "w")), nullptr);
}

}  // namespace
}  // namespace pipeshard
