#include "ir/cluster/profile.h"

#include <gtest/gtest.h>

#include "ir/base/error.h"

namespace pipeshard {
namespace {

OperatorWork gelu(int64_t bytes) {
  return {.op = "Gelu", .sizes = {1, 1, 1, 1, 1}, .flops = 100, .bytes = bytes};
}

OperatorWork product(int64_t rows, int64_t columns, int64_t summed) {
  return {.op = "MatMul",
          .sizes = {1, rows, columns, summed, 1},
          .flops = 2 * rows * columns * summed,
          .bytes = 4 * (rows * summed + summed * columns + rows * columns)};
}

Profile sample() {
  Profile profile;
  profile.device = {"Model 7", "avx2", 4, 1};
  profile.memory = {{{0, 0}, {1000000, 100000}}};
  profile.rates = {{WorkClass::kContraction, DataType::kFloat32, CostCurve{{{0, 100}, {1000000, 10100}}}, {}},
                   {WorkClass::kMovement, DataType::kFloat64, {}, CostCurve{{{0, 100}, {1000000, 90100}}}}};
  profile.inside = {{{0, 900}, {1048576, 120000}}};
  profile.collectives = {{"AllReduce", 2, CostCurve{{{4096, 3000}, {1048576, 400000}}}}};
  profile.points = {{{.op = "Gelu", .flops = 100, .bytes = 1000}, 100, 0}, {product(64, 64, 64), 5000, 6000}};
  return profile;
}

Error errorOf(const std::string& text) {
  try {
    profileFromJson(text, "p.json");
  } catch (const Error& error) {
    return error;
  }
  return Error(ErrorCode::kInternal, "no error");
}

std::string replaced(const std::string& from, const std::string& to) {
  std::string text = profileToJson(sample());
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(OperatorTimes, APointOfEqualWorkDecidesAlone) {
  Profile profile;
  profile.points = {{gelu(1000), 100, 130}, {gelu(1001), 900, 900}};
  const OperatorTimes times(profile);
  EXPECT_EQ(times.operatorTime(gelu(1000), false), 100);
  EXPECT_EQ(times.operatorTime(gelu(1000), true), 130);
}

TEST(OperatorTimes, BetweenTwoPointsIsTheMeanOfWhatTheirRatesSay) {
  Profile profile;
  profile.points = {{gelu(1000), 100, 0}, {gelu(4000), 1600, 0}};
  const OperatorTimes times(profile);
  EXPECT_EQ(times.operatorTime(gelu(2000), false), 400);  // 200 and 800, weights 1 and 1
  EXPECT_EQ(times.operatorTime(gelu(2000), true), 400);   // nothing else was measured
  // 16000: d2 = 16 and 4, so weights 1/16 and 1/4; they say 1600 and 6400: log2 6400 - 2 * (1/16) / (5/16) =
  // 6400 / 2^0.4.
  EXPECT_EQ(times.operatorTime(gelu(16000), false), 4850);
}

TEST(OperatorTimes, ProductsScaleWithFlops) {
  Profile profile;
  profile.points = {{product(256, 256, 256), 300000, 0}};
  const OperatorTimes times(profile);
  EXPECT_EQ(times.operatorTime(product(256, 256, 512), false), 600000);
  EXPECT_EQ(times.operatorTime(product(512, 512, 256), false), 1200000);
}

TEST(OperatorTimes, OtherAttributesAreFartherThanTwiceTheSize) {
  OperatorWork transposed = gelu(2000);
  transposed.attributes = "perm=[1, 0]";
  Profile profile;
  profile.points = {{gelu(1000), 100, 0}, {transposed, 8000, 0}};
  const OperatorTimes times(profile);
  // d2 = 1 and 4: weights 4/5 and 1/5; they say 200 and 8000: 200 * 40^(1/5).
  EXPECT_EQ(times.operatorTime(gelu(2000), false), 418);
}

TEST(OperatorTimes, OperatorsAndTypesWithoutPointsHaveNoTime) {
  const OperatorTimes times(sample());
  EXPECT_FALSE(times.operatorTime({.op = "Softmax"}, false));
  OperatorWork wide = gelu(1000);
  wide.type = DataType::kFloat64;
  EXPECT_FALSE(times.operatorTime(wide, false));
  EXPECT_TRUE(times.operatorTime({.op = "Gelu", .flops = 0, .bytes = 0}, false));
  EXPECT_TRUE(OperatorTimes(Profile{}).empty());
}

TEST(Profile, ReadsWhatItWrites) {
  const std::string text = profileToJson(sample());
  const Profile read = profileFromJson(text, "p.json");
  EXPECT_EQ(profileToJson(read), text);
  EXPECT_EQ(read.points, sample().points);
  EXPECT_EQ(read.device, sample().device);
  EXPECT_EQ(read.collectives, sample().collectives);
  EXPECT_EQ(profileDigest(read), profileDigest(sample()));
}

TEST(Profile, EveryNumberChangesTheDigest) {
  Profile other = sample();
  other.points[1].busy_ns += 1;
  EXPECT_NE(profileDigest(other), profileDigest(sample()));
}

TEST(Profile, NewPointsTakeThePlaceOfOldOnes) {
  Profile profile = sample();
  mergePoints(profile, {{product(64, 64, 64), 7000, 0}, {gelu(10), 1, 0}});
  ASSERT_EQ(profile.points.size(), 3U);
  EXPECT_EQ(profile.points[0].work, gelu(10));
  EXPECT_EQ(profile.points[2].ns, 7000);
  EXPECT_NO_THROW(profileFromJson(profileToJson(profile), "p.json"));
}

TEST(Profile, SaysWhatIsWrong) {
  struct Case {
    std::string from, to, message;
    ErrorCode code = ErrorCode::kConfiguration;
  };
  const std::string gelu_line = R"({"op":"Gelu","type":"float32","flops":100,"bytes":1000,"ns":100})";
  const std::vector<Case> cases = {
      {"\"version\": 1", "\"version\": 2", "version 2 was found", ErrorCode::kVersionMismatch},
      {"\"version\": 1,", "", "\"version\" is missing"},
      {"{\n", "", "this is not JSON"},
      {"\"memory\"", "\"memry\"", "unknown key \"memry\""},
      {"\"processors\":4", "\"processors\":0", "p.json.device.processors: found 0"},
      {"[1048576,120000]", "[1048576]", "p.json.inside[1]: found [1048576]; expected two numbers"},
      {"[1048576,120000]", "[0,120000]", "expected amounts that ascend"},
      {"[1048576,120000]", "[1048576,12]", "expected nanoseconds that do not fall"},
      {"\"contraction\"", "\"contracton\"", "p.json.rates[0].class: found \"contracton\""},
      {"\"AllReduce\"", "\"Reduce\"", "p.json.collectives[0].kind"},
      {"\"devices\":2", "\"devices\":1", "p.json.collectives[0].devices"},
      {"\"op\":\"Gelu\"", "\"op\":\"\"", "p.json.points[0].op: found \"\"; expected the name of an operator"},
      {"\"ns\":100}", "\"ns\":0}", "p.json.points[0].ns: found 0"},
      {"\"ns\":100}", "\"ns\":1.5}", "p.json.points[0].ns: found 1.5"},
      {"\"type\":\"float32\",\"flops\":100", "\"type\":\"float31\",\"flops\":100", "p.json.points[0].type"},
      {",\"rows\":64", ",\"rows\":-64", "p.json.points[1].rows"},
      {gelu_line, gelu_line + "," + gelu_line, "p.json.points[1]"},
  };
  for (const Case& c : cases) {
    const Error error = errorOf(replaced(c.from, c.to));
    EXPECT_EQ(error.code(), c.code) << c.message;
    EXPECT_NE(error.message().find(c.message), std::string::npos) << error.message();
  }
}

}  // namespace
}  // namespace pipeshard
