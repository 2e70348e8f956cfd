#include "partition/run_costs.h"

#include <algorithm>
#include <bit>
#include <iterator>

#include "ir/error.h"

namespace pipeshard {

void PairSums::add(int a, int b, int64_t bytes) {
  if (b == a + 1) {
    adjacent_[static_cast<size_t>(b)] += bytes;
  } else {
    far_.push_back({a, b, bytes});
  }
}

void PairSums::addChain(const std::vector<int>& layers, int64_t bytes) {
  for (size_t i = 1; i < layers.size(); ++i) add(layers[i - 1], layers[i], bytes);
}

void PairSums::finish() {
  for (size_t layer = 1; layer < adjacent_.size(); ++layer) adjacent_[layer] += adjacent_[layer - 1];
}

int64_t PairSums::within(int first, int last) const {
  int64_t bytes = upTo(last) - upTo(first);
  for (const Pair& pair : far_) {
    if (first <= pair.a && pair.b <= last) bytes += pair.bytes;
  }
  return bytes;
}

RangeMaximum::RangeMaximum(std::vector<int64_t> values) {
  levels_.push_back(std::move(values));
  for (size_t width = 1; 2 * width <= levels_.front().size(); width *= 2) {
    const std::vector<int64_t>& half = levels_.back();
    std::vector<int64_t> level;
    for (size_t i = 0; i + 2 * width <= levels_.front().size(); ++i) level.push_back(std::max(half[i], half[i + width]));
    levels_.push_back(std::move(level));
  }
}

int64_t RangeMaximum::of(int first, int last) const {
  const auto length = static_cast<unsigned>(last - first + 1);
  const auto level = static_cast<size_t>(std::bit_width(length) - 1);
  const std::vector<int64_t>& maxima = levels_[level];
  return std::max(maxima[static_cast<size_t>(first)], maxima[static_cast<size_t>(last + 1) - (size_t{1} << level)]);
}

namespace {

std::vector<int64_t> updatePeaks(const std::vector<const PricedStage*>& layers) {
  std::vector<int64_t> peaks;
  for (const PricedStage* layer : layers) peaks.push_back(layer == nullptr ? 0 : layer->update_bytes);
  return peaks;
}

bool has(const std::vector<int>& layers, int layer) { return std::binary_search(layers.begin(), layers.end(), layer); }

// Layers whose forward or backward passes read what another layer's forward pass makes.
std::vector<int> takersOf(const CrossingValue& crossing) {
  if (crossing.made < 0 || crossing.gradient) return {};
  std::vector<int> takers;
  std::set_union(crossing.forward.begin(), crossing.forward.end(), crossing.waits.begin(), crossing.waits.end(),
                 std::back_inserter(takers));
  std::erase(takers, crossing.made);
  return takers;
}

}  // namespace

RunCosts::RunCosts(const TrainingGraph& training, const LayerPieces& pieces, const std::vector<const PricedStage*>& layers,
                   std::vector<int64_t> crossing_bytes, std::vector<int64_t> exchange_ns)
    : pieces_(pieces),
      crossing_bytes_(std::move(crossing_bytes)),
      exchange_ns_(std::move(exchange_ns)),
      one_microbatch_(training.microbatches == 1),
      sums_(1),
      impossible_(1),
      waiting_(layers.size()),
      inputs_(layers.size()),
      handed_on_(layers.size()),
      weights_(layers.size()),
      gradients_(layers.size()),
      passing_(layers.size()),
      pass_peaks_({}),
      layer_peaks_({}),
      update_peaks_(updatePeaks(layers)) {
  std::vector<int64_t> handed_on(layers.size());
  for (size_t index = 0; index < pieces_.crossings.size(); ++index) {
    const std::vector<int> takers = takersOf(pieces_.crossings[index]);
    for (int layer : takers) handed_on[static_cast<size_t>(layer)] += crossing_bytes_[index];
    handed_on_.addChain(takers, crossing_bytes_[index]);
  }
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    static constexpr PricedStage kNone;
    const PricedStage& of = layers[layer] == nullptr ? kNone : *layers[layer];
    const Sums own = {of.forward_ns,         of.backward_input_ns,   of.backward_weight_ns, of.communication_ns, of.update_ns,
                      of.synchronization_ns, of.weight_bytes,        of.gradient_bytes,     of.optimizer_bytes,  of.waiting_bytes,
                      of.input_bytes,        of.waiting_input_bytes, handed_on[layer]};
    Sums next = sums_.back();
    for (size_t field = 0; field < own.size(); ++field) next[field] += own[field];
    sums_.push_back(next);
    impossible_.push_back(impossible_.back() + (layers[layer] == nullptr ? 1 : 0));
  }
  addPairs(training);
  pass_peaks_ = passes(layers);
  layer_peaks_ = layersAlone(layers);
}

void RunCosts::addPairs(const TrainingGraph& training) {
  for (size_t index = 0; index < pieces_.crossings.size(); ++index) {
    const CrossingValue& crossing = pieces_.crossings[index];
    const int64_t bytes = crossing_bytes_[index];
    waiting_.addChain(crossing.waits, bytes);
    if (crossing.made < 0) inputs_.addChain(crossing.readers, bytes);
    for (int layer = crossing.first() + 1; layer < crossing.last(); ++layer) {
      const bool held = layer == crossing.made || has(crossing.readers, layer);
      const bool kept = !crossing.waits.empty() && crossing.waits.front() < layer;
      if (!held && !kept) passing_[static_cast<size_t>(layer)] += bytes;
    }
  }
  for (const SharedParameter& shared : pieces_.shared) {
    weights_.addChain(shared.layers, training.graph.bytes(shared.value));
    gradients_.addChain(shared.gradients, training.graph.bytes(shared.value));
  }
  for (PairSums* sums : {&waiting_, &inputs_, &handed_on_, &weights_, &gradients_}) sums->finish();
}

// By layer: the most that passes hold while it runs, with what all layers before it keep, and (with one microbatch) without the
// accumulators of it and those before, which are not there yet.
RangeMaximum RunCosts::passes(const std::vector<const PricedStage*>& layers) const {
  std::vector<int64_t> peaks;
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    int64_t peak = passing_[layer] + sums_[layer][kWaiting] - waiting_.upTo(static_cast<int>(layer));
    if (layers[layer] != nullptr) peak += layers[layer]->pass_bytes;
    if (one_microbatch_) peak -= sums_[layer + 1][kGradients];
    peaks.push_back(peak);
  }
  return RangeMaximum(std::move(peaks));
}

// By layer: what its passes hold besides what is handed on to it, with what passes by; accumulators as in passes().
RangeMaximum RunCosts::layersAlone(const std::vector<const PricedStage*>& layers) const {
  std::vector<int64_t> peaks;
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    const int at = static_cast<int>(layer);
    int64_t peak = passing_[layer] - sum(kHandedOn, at, at) - sum(kInputs, at, at);
    if (layers[layer] != nullptr) peak += layers[layer]->emitted_bytes;
    if (one_microbatch_) peak -= sums_[layer + 1][kGradients];
    peaks.push_back(peak);
  }
  return RangeMaximum(std::move(peaks));
}

bool RunCosts::possible(int first, int last) const {
  return impossible_[static_cast<size_t>(last) + 1] == impossible_[static_cast<size_t>(first)];
}

int64_t RunCosts::sum(Field field, int first, int last) const {
  return sums_[static_cast<size_t>(last) + 1][field] - sums_[static_cast<size_t>(first)][field];
}

int64_t RunCosts::exchange(int first, int last) const {
  int64_t ns = 0;
  for (size_t index = 0; index < pieces_.shared.size(); ++index) {
    const std::vector<int>& layers = pieces_.shared[index].layers;
    const auto inside = std::count_if(layers.begin(), layers.end(), [&](int layer) { return first <= layer && layer <= last; });
    if (inside > 0 && inside < static_cast<int64_t>(layers.size())) ns += exchange_ns_[index];
  }
  return ns;
}

std::pair<int64_t, int64_t> RunCosts::entering(int first, int last) const {
  std::pair<int64_t, int64_t> bytes;
  if (first == 0) return bytes;
  const auto anyFrom = [&](const std::vector<int>& layers) {
    const auto next = std::lower_bound(layers.begin(), layers.end(), first);
    return next != layers.end() && *next <= last;
  };
  for (int number : pieces_.at_cut[static_cast<size_t>(first) - 1]) {
    const CrossingValue& crossing = pieces_.crossings[static_cast<size_t>(number)];
    if (crossing.gradient || !anyFrom(crossing.forward)) continue;
    bytes.first += crossing_bytes_[static_cast<size_t>(number)];
    if (anyFrom(crossing.waits)) bytes.second += crossing_bytes_[static_cast<size_t>(number)];
  }
  return bytes;
}

StageCostParts RunCosts::of(int first, int last, std::string_view recomputation) const {
  PIPESHARD_CHECK(possible(first, last), "layers {} to {} cannot be in this way", first, last);
  StageCostParts parts;
  parts.forward_ns = sum(kForward, first, last);
  parts.backward_input_ns = sum(kInput, first, last);
  parts.backward_weight_ns = sum(kWeight, first, last);
  parts.communication_ns = sum(kCommunication, first, last);
  parts.update_ns = sum(kUpdate, first, last);
  parts.synchronization_ns = sum(kSynchronization, first, last) + exchange(first, last);
  parts.weight_bytes = sum(kWeights, first, last) - weights_.within(first, last);
  parts.gradient_bytes = sum(kGradients, first, last) - gradients_.within(first, last);
  parts.optimizer_bytes = sum(kStates, first, last);
  addPassMemory(first, last, recomputation, parts);
  return parts;
}

void RunCosts::addPassMemory(int first, int last, std::string_view recomputation, StageCostParts& parts) const {
  const int64_t waiting = sum(kWaiting, first, last) - waiting_.within(first, last);
  const auto at = static_cast<size_t>(first);
  int64_t peak = pass_peaks_.of(first, last) - (sums_[at][kWaiting] - waiting_.upTo(first));
  int64_t layer_peak = layer_peaks_.of(first, last);
  int64_t update = update_peaks_.of(first, last);
  if (one_microbatch_) {
    peak += sums_[static_cast<size_t>(last) + 1][kGradients];
    layer_peak += sums_[static_cast<size_t>(last) + 1][kGradients];
    update += parts.gradient_bytes;
  }
  parts.activation_bytes = waiting;
  parts.transient_bytes = peak - waiting;
  if (recomputation != "never") {
    const int64_t inputs = sum(kInputs, first, last) - inputs_.within(first, last);
    const auto [entering_bytes, waiting_bytes] = entering(first, last);
    // Of the microbatch that runs: kept, whether it is recomputed or not.
    const int64_t kept = std::max<int64_t>(0, waiting_bytes + sum(kWaitingInputs, first, last) - inputs_.within(first, last));
    parts.recomputation_ns = parts.forward_ns;
    parts.remade_bytes = waiting - kept;
    if (recomputation == "layers") {
      parts.activation_bytes = inputs + sum(kHandedOn, first, last) - handed_on_.within(first, last);
      parts.transient_bytes = layer_peak;
    } else {
      parts.activation_bytes = inputs + entering_bytes;
      parts.transient_bytes = peak - kept;
    }
  }
  parts.halved_transient_bytes = std::max(peak - waiting, update - parts.activation_bytes);
  parts.transient_bytes = std::max(parts.transient_bytes, update - parts.activation_bytes);
}

}  // namespace pipeshard
