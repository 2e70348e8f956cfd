#include "partition/layers/automatic_layers.h"

#include <algorithm>
#include <numeric>

#include "partition/layers/chain.h"
#include "partition/layers/layers.h"
#include "sharding/stage/repeats.h"

namespace pipeshard {
namespace {

// Fewer layers than this leave stages little choice: blocks are cut, where a cut inside costs no more than
// one between them, and models without blocks wherever it costs least.
constexpr int kFewLayers = 16;

int64_t rounded(int64_t amount, int64_t unit) { return (amount + unit / 2) / unit; }

struct Piece {
  int64_t first = 0;
  int64_t last = 0;
};

class PieceMaker {
 public:
  PieceMaker(const LayerMaterial& material, const std::vector<RepeatedBlocks>& repeats, double tolerance)
      : material_(material), repeats_(repeats), tolerance_(tolerance) {
    const auto covered = [&](const RepeatedBlocks& run) { return run.blocks * blockFlops(run); };
    main_ = *std::max_element(
        repeats.begin(), repeats.end(),
        [&](const RepeatedBlocks& a, const RepeatedBlocks& b) { return covered(a) < covered(b); });
  }

  // The pieces when `group` blocks of the main run make a layer, or (group 1) each block `parts`. No pieces:
  // blocks have no such parts.
  std::vector<Piece> make(int64_t group, int64_t parts) {
    pieces_.clear();
    inner_ends_ = parts > 1 ? partsOfBlock(parts) : std::vector<int64_t>{};
    if (parts > 1 && inner_ends_.empty()) return {};
    unit_ = std::max<int64_t>(1, group * blockFlops(main_) / parts);
    int64_t next = 0;
    for (const RepeatedBlocks& run : repeats_) {
      addGap(next, run.first - 1);
      addRun(run, run == main_ ? group : rounded(unit_, blockFlops(run)));
      next = run.first + run.blocks * run.length;
    }
    addGap(next, material_.count() - 1);
    joinSmall();
    return pieces_;
  }

 private:
  int64_t flops(int64_t first, int64_t last) const { return sumOver(material_.flops, first, last); }
  int64_t blockFlops(const RepeatedBlocks& run) const {
    return std::max<int64_t>(1, flops(run.first, run.first + run.length - 1));
  }

  // Positions inside a block, counted from its first, where parts end; as a block in the middle has it. The
  // last part's is left out.
  std::vector<int64_t> partsOfBlock(int64_t parts) const {
    if (parts > main_.length) return {};
    const int64_t first = main_.first + main_.blocks / 2 * main_.length;
    const auto range = [&](const std::vector<int64_t>& all) {
      return std::vector<int64_t>(all.begin() + first, all.begin() + first + main_.length);
    };
    ClusteringProblem problem{
        range(material_.flops), range(material_.cut_bytes), {}, static_cast<int>(parts), tolerance_};
    const int64_t border = material_.cut_bytes[first - 1];
    for (int64_t bytes : problem.cut_bytes) problem.may_end.push_back(bytes <= border);
    std::vector<int64_t> ends = clusterLayers(problem);
    if (!ends.empty()) ends.pop_back();
    return ends;
  }

  void addRun(const RepeatedBlocks& run, int64_t group) {
    const int64_t per_layer = std::clamp<int64_t>(group, 1, run.blocks);
    const int64_t layers = (run.blocks + per_layer - 1) / per_layer;
    for (int64_t l = 0; l < layers; ++l) {
      Piece piece{run.first + l * run.blocks / layers * run.length,
                  run.first + (l + 1) * run.blocks / layers * run.length - 1};
      if (run == main_) {
        const int64_t block = piece.first;
        for (int64_t end : inner_ends_) {
          pieces_.push_back({piece.first, block + end});
          piece.first = block + end + 1;
        }
      }
      pieces_.push_back(piece);
    }
  }

  // What stands between runs: pieces of about a unit each.
  void addGap(int64_t first, int64_t last) {
    if (first > last) return;
    const int64_t parts = std::min(rounded(flops(first, last), unit_), last - first + 1);
    std::vector<int64_t> ends = {last - first};
    if (parts > 1) {
      const auto range = [&](const std::vector<int64_t>& all) {
        return std::vector<int64_t>(all.begin() + first, all.begin() + last + 1);
      };
      ends = clusterAsEvenlyAsPossible(
          {range(material_.flops), range(material_.cut_bytes), {}, static_cast<int>(parts), tolerance_});
    }
    for (int64_t end : ends) {
      pieces_.push_back({first, last - (ends.back() - end)});
      first = pieces_.back().last + 1;
    }
  }

  // A piece of less than half a unit joins its neighbour, across the dearer of its two cuts.
  void joinSmall() {
    for (size_t p = 0; p < pieces_.size() && pieces_.size() > 1;) {
      if (flops(pieces_[p].first, pieces_[p].last) * 2 >= unit_) {
        ++p;
        continue;
      }
      const auto cutBehind = [&](size_t piece) { return material_.cut_bytes[pieces_[piece].last]; };
      const bool to_previous = p + 1 == pieces_.size() || (p > 0 && cutBehind(p - 1) > cutBehind(p));
      const size_t left = to_previous ? p - 1 : p;
      pieces_[left].last = pieces_[left + 1].last;
      pieces_.erase(pieces_.begin() + left + 1);
      p = left;
    }
  }

  const LayerMaterial& material_;
  const std::vector<RepeatedBlocks>& repeats_;
  double tolerance_;
  RepeatedBlocks main_;
  int64_t unit_ = 1;  // FLOPs of a layer, about
  std::vector<int64_t> inner_ends_;
  std::vector<Piece> pieces_;
};

std::vector<Piece> blockLayers(const LayerMaterial& material, const std::vector<RepeatedBlocks>& repeats,
                               int most_layers, double tolerance) {
  PieceMaker maker(material, repeats, tolerance);
  std::vector<Piece> pieces = maker.make(1, 1);
  for (int64_t group = 2; std::ssize(pieces) > most_layers && group <= material.count(); ++group)
    pieces = maker.make(group, 1);
  if (std::ssize(pieces) >= kFewLayers) return pieces;
  const int64_t wanted = (kFewLayers + std::ssize(pieces) - 1) / std::ssize(pieces);
  for (int64_t parts = wanted; parts > 1; --parts) {
    const std::vector<Piece> finer = maker.make(1, parts);
    if (std::ssize(finer) > std::ssize(pieces) && std::ssize(finer) <= most_layers) return finer;
  }
  return pieces;
}

// As many layers as possible whose cuts cost at most half more than the best cut into two; where these are
// few, as in convolutional networks, whose images shrink on the way, dearer cuts beside them.
LayerEnds layersWithoutBlocks(const LayerMaterial& material, int most_layers, double tolerance) {
  const int few = static_cast<int>(std::min<int64_t>({kFewLayers, most_layers, material.count()}));
  ClusteringProblem problem{material.flops, material.cut_bytes, {}, 2, tolerance};
  const LayerEnds two = material.count() > 1 ? clusterAsEvenlyAsPossible(problem) : LayerEnds{};
  if (two.empty()) return {material.count() - 1};
  const int64_t bytes = material.cut_bytes[two.front()];
  for (int64_t cut : material.cut_bytes) problem.may_end.push_back(cut <= bytes + bytes / 2);
  for (problem.layers = most_layers; problem.layers >= few; --problem.layers) {
    LayerEnds ends = clusterLayers(problem);
    if (!ends.empty()) return ends;
  }
  return clusterAsEvenlyAsPossible({material.flops, material.cut_bytes, {}, few, tolerance});
}

}  // namespace

LayerMaterial layerMaterial(const TrainingGraph& training, const std::vector<NodeId>& order) {
  return {structuralNumbers(training.graph, order), forwardFlops(training, order), cutBytes(training, order)};
}

RepeatedBlocks repeatsWithin(const LayerMaterial& material, int64_t begin, int64_t end) {
  const std::vector<int> keys(material.keys.begin() + begin, material.keys.begin() + end);
  const std::vector<int64_t> flops(material.flops.begin() + begin, material.flops.begin() + end);
  const RepeatedRun run = heaviestRun(keys, flops, 1);
  RepeatedBlocks best{0, static_cast<int64_t>(run.period), static_cast<int64_t>(run.repeats)};
  if (run.repeats == 0) return {};
  int64_t fewest = INT64_MAX;
  for (size_t offset = 0; offset + run.repeats * run.period <= run.extent; ++offset) {
    const int64_t first = begin + static_cast<int64_t>(run.begin + offset);
    int64_t bytes = 0;
    for (int64_t block = 1; block < best.blocks; ++block)
      bytes += material.cut_bytes[first + block * best.length - 1];
    if (bytes >= fewest) continue;
    fewest = bytes;
    best.first = first;
  }
  return best;
}

std::vector<RepeatedBlocks> allRepeats(const LayerMaterial& material) {
  const int64_t total = std::accumulate(material.flops.begin(), material.flops.end(), int64_t{0});
  std::vector<RepeatedBlocks> found;
  std::vector<Piece> open = {{0, material.count() - 1}};
  while (!open.empty()) {
    const Piece range = open.back();
    open.pop_back();
    if (range.first >= range.last) continue;
    const RepeatedBlocks run = repeatsWithin(material, range.first, range.last + 1);
    if (run.blocks == 0 ||
        sumOver(material.flops, run.first, run.first + run.blocks * run.length - 1) < total / 20)
      continue;
    found.push_back(run);
    open.push_back({range.first, run.first - 1});
    open.push_back({run.first + run.blocks * run.length, range.last});
  }
  std::sort(found.begin(), found.end(),
            [](const RepeatedBlocks& a, const RepeatedBlocks& b) { return a.first < b.first; });
  return found;
}

LayerEnds automaticEnds(const LayerMaterial& material, const std::vector<RepeatedBlocks>& repeats,
                        int most_layers, double tolerance) {
  int64_t covered = 0;
  for (const RepeatedBlocks& run : repeats)
    covered += sumOver(material.flops, run.first, run.first + run.blocks * run.length - 1);
  const int64_t total = std::accumulate(material.flops.begin(), material.flops.end(), int64_t{0});
  if (repeats.empty() || covered < total / 2) return layersWithoutBlocks(material, most_layers, tolerance);
  LayerEnds ends;
  for (const Piece& piece : blockLayers(material, repeats, most_layers, tolerance))
    ends.push_back(piece.last);
  return ends;
}

}  // namespace pipeshard
