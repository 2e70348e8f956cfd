#include "runtime/files/npz.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <random>

#include "tests/expect_error.h"
#include "tests/runtime/files/npz_writer.h"
#include "tests/temporary_folder.h"

namespace pipeshard {
namespace {

template <typename T>
std::vector<T> elementsOf(const NpzArray& array) {
  std::vector<T> elements(array.bytes.size() / sizeof(T));
  std::memcpy(elements.data(), array.bytes.data(), array.bytes.size());
  return elements;
}

NpyHeader parse(const std::string& bytes) { return parseNpyHeader(std::as_bytes(std::span(bytes)), "here"); }

TEST(NpzFile, ReadsCompressedAndStoredArrays) {
  const TemporaryFolder folder;
  for (const bool compress : {true, false}) {
    const std::string path = folder.file(compress ? "compressed.npz" : "stored.npz");
    ASSERT_TRUE(writeNpz(path,
                         {{"ids.npy", npyArray("<i8", "(2, 2)", bytesOf<int64_t>({1, -2, 3, 4}))},
                          {"mask.npy", npyArray("|b1", "(3,)", bytesOf<uint8_t>({1, 0, 1}))},
                          {"one.npy", npyArray("<f8", "()", bytesOf<double>({2.5}))}},
                         compress));
    const NpzFile file = NpzFile::open(path);
    EXPECT_EQ(file.names(), (std::vector<std::string>{"ids", "mask", "one"}));
    EXPECT_EQ(elementsOf<int64_t>(file.read("ids")), (std::vector<int64_t>{1, -2, 3, 4}));
    EXPECT_EQ(file.read("ids").shape, (Shape{2, 2}));
    EXPECT_EQ(file.read("mask").data_type, DataType::kBool);
    EXPECT_EQ(file.read("one").shape, Shape{});
    EXPECT_ERROR(file.read("labels"), ErrorCode::kMissingInput, "it holds: ids, mask, one");
    EXPECT_ERROR(file.read("Mask"), ErrorCode::kMissingInput,
                 "it holds: ids, mask, one ('mask' differs in case only: save it as 'Mask'");
  }
}

TEST(NpzFile, TurnsFortranOrderIntoRowMajor) {
  const TemporaryFolder folder;
  // [[0, 1, 2], [3, 4, 5]] column by column.
  ASSERT_TRUE(writeNpz(folder.file("f.npz"),
                       {{"a.npy", npyArray("<f4", "(2, 3)", bytesOf<float>({0, 3, 1, 4, 2, 5}), true)}}));
  EXPECT_EQ(elementsOf<float>(NpzFile::open(folder.file("f.npz")).read("a")),
            (std::vector<float>{0, 1, 2, 3, 4, 5}));
}

TEST(NpyHeader, AcceptsAllVersionsAndSpellings) {
  for (const int version : {1, 2, 3}) {
    EXPECT_EQ(
        parse(npyFile("{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }", "", version)).shape,
        (Shape{3, 4}));
  }
  const NpyHeader header = parse(npyFile("{\"shape\":(5,),\"fortran_order\":True,\"descr\":\"|u1\"}", ""));
  EXPECT_EQ(header.shape, Shape{5});
  EXPECT_TRUE(header.fortran_order);
  EXPECT_EQ(header.data_type, DataType::kUint8);
}

TEST(NpyHeader, RefusesWhatItCannotRead) {
  EXPECT_ERROR(parse(std::string("PK\3\4 something else")), ErrorCode::kBadModel, "here is not a .npy array");
  EXPECT_ERROR(parse(npyFile("{}", "", 4)), ErrorCode::kBadModel, "version 4");
  EXPECT_ERROR(parse(npyFile("{'descr': '>f4', 'fortran_order': False, 'shape': (3,)}", "")),
               ErrorCode::kBadModel,
               "'>f4' are not supported (little-endian bool, integers and floats of 2, "
               "4 or 8 bytes are); save array.astype('<f4')");
  EXPECT_ERROR(parse(npyFile("{'descr': '|O', 'fortran_order': False, 'shape': (3,)}", "")),
               ErrorCode::kBadModel, "pad them to one length and save numbers, or write JSON Lines (.jsonl)");
  EXPECT_ERROR(parse(npyFile("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (3,)}", "")),
               ErrorCode::kBadModel, "structured");
  EXPECT_ERROR(parse(npyFile("{'descr': '<f4', 'shape': (3,)}", "")), ErrorCode::kBadModel, "are all needed");
  EXPECT_ERROR(parse(npyFile("{'descr': '<f4', 'fortran_order': False, 'shape': (-3,)}", "")),
               ErrorCode::kBadModel, "expected a number");
  EXPECT_ERROR(
      parse(npyFile("{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}", "")),
      ErrorCode::kBadModel, "too large");
  EXPECT_ERROR(parse(npyFile("{'descr': '<f4', 'fortran_order': False, 'shape': (3,)} evil", "")),
               ErrorCode::kBadModel, "after the closing");
  EXPECT_ERROR(parse(npyFile("{'descr': '<f4", "")), ErrorCode::kBadModel, "unfinished");
  EXPECT_ERROR(parse(std::string("\x93NUMPY\1\0\xff\xff{", 11)), ErrorCode::kBadModel, "claims 65535 bytes");
}

TEST(NpzFile, RefusesWrongSizesAndNamesTheArray) {
  const TemporaryFolder folder;
  ASSERT_TRUE(
      writeNpz(folder.file("short.npz"), {{"a.npy", npyArray("<f4", "(4,)", bytesOf<float>({1, 2}))}}));
  EXPECT_ERROR(NpzFile::open(folder.file("short.npz")).read("a"), ErrorCode::kBadModel,
               "array 'a' is float32[4] (16 bytes), but 8 bytes follow");
  ASSERT_TRUE(
      writeNpz(folder.file("huge.npz"), {{"a.npy", npyArray("<f8", "(4611686018427387904, 16)", "")}}));
  EXPECT_ERROR(NpzFile::open(folder.file("huge.npz")).read("a"), ErrorCode::kBadModel, "array 'a'");
  ASSERT_TRUE(writeNpz(folder.file("other.npz"), {{"readme.txt", "hello"}}));
  EXPECT_ERROR(NpzFile::open(folder.file("other.npz")), ErrorCode::kBadModel, "readme.txt");
  std::ofstream(folder.file("text.npz")) << "no zip";
  EXPECT_ERROR(NpzFile::open(folder.file("text.npz")), ErrorCode::kBadModel,
               "text.npz cannot be read as .npz");
  EXPECT_ERROR(NpzFile::open(folder.file("none.npz")), ErrorCode::kMissingInput, "none.npz");
}

TEST(NpzFile, SurvivesRandomDamage) {
  const TemporaryFolder folder;
  const std::vector<float> numbers(100, 1.25f);
  ASSERT_TRUE(
      writeNpz(folder.file("good.npz"), {{"a.npy", npyArray("<f4", "(100,)", bytesOf(numbers))},
                                         {"b.npy", npyArray("<f4", "(2,)", bytesOf<float>({1, 2}))}}));
  std::ifstream good_file(folder.file("good.npz"), std::ios::binary);
  const std::string good{std::istreambuf_iterator<char>(good_file), {}};
  std::mt19937 random(11);
  int refused = 0;
  for (int round = 0; round < 1000; ++round) {
    std::string bad = good;
    for (int i = 0; i < 4; ++i) bad[random() % bad.size()] = static_cast<char>(random());
    std::ofstream(folder.file("bad.npz"), std::ios::binary | std::ios::trunc) << bad;
    try {
      const NpzFile file = NpzFile::open(folder.file("bad.npz"));
      for (const std::string& name : file.names()) file.read(name);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kBadModel) << error.message();
      ++refused;
    }
  }
  EXPECT_GT(refused, 500);
}

TEST(NpzFile, SaysOfWhatIsNoFileThatItIsThere) {
  const TemporaryFolder folder;
  const std::string pipe = folder.file("pipe.npz");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_ERROR(NpzFile::open(pipe), ErrorCode::kMissingInput, pipe + " is no plain file");
  EXPECT_ERROR(NpzFile::open(folder.file("none.npz")), ErrorCode::kMissingInput, "there is no data file");
}

}  // namespace
}  // namespace pipeshard
