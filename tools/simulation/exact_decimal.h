// Decimal numbers as people write them, kept exactly: all of a command's become whole numbers of one common
// unit.
//
//   "18.522", "9.337" and "0.6" with two chunks: 2000 units each, so 37044, 18674 and 1200
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace pipeshard {

struct Decimal {
  int64_t digits = 0;  // value: digits / 10^places
  int places = 0;
};

// "18.522", "-1", ".5": at most 15 digits. Error(kUsage) naming the option otherwise.
Decimal parseDecimal(std::string_view option, std::string_view text);

// "F=1,I=0.5": keys among `known`, each once. Error(kUsage) naming the option, what was found and what is
// known.
std::map<std::string, Decimal> parseDecimals(std::string_view option, std::string_view text,
                                             const std::vector<std::string>& known);

// 10^k with the smallest k that makes all of them whole.
int64_t commonScale(const std::vector<Decimal>& decimals);
// scale must be a multiple of 10^places.
int64_t inUnits(const Decimal& decimal, int64_t scale);

// "28.5", "0.333333": six digits after the point at most.
std::string decimalText(int64_t units, int64_t scale);

}  // namespace pipeshard
