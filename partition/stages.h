// Stages: runs of consecutive layers.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace pipeshard {

// Cuts layers into exactly `stages` non-empty stages; returns the last layer of each. Exact, by dynamic programming in
// O(stages * layers^2): the largest sum of costs over stages is least; among those partitions the sum of cut_bytes at the
// cuts is least; among those the cuts are earliest (the first cut, then the second, ...). A slow stage stalls the others in
// every microbatch, so the largest stage decides the time of a pipeline; the idea of the contiguous min-max partition is
// PipeDream's (Narayanan et al. 2019, section 3.1) and Alpa's (Zheng et al. 2022, section 5).
// Requires 1 <= stages <= cost.size() == cut_bytes.size(); cut_bytes[i] belongs to the cut behind layer i.
//   assignStages({2,1,1,2}, {5,5,5,0}, 2) == {1,3};   assignStages({1,1,1,1,9}, {1,9,3,4,0}, 2) == {3,4}
std::vector<int> assignStages(const std::vector<int64_t>& cost, const std::vector<int64_t>& cut_bytes, int stages);

// Names among `candidates` that are close to `name` (edit distance, or one holds the other), best first, at most three.
std::vector<std::string> nearMatches(std::string_view name, const std::vector<std::string>& candidates);

}  // namespace pipeshard
