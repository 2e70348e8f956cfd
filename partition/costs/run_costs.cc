#include "partition/costs/run_costs.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <numeric>

#include "ir/base/error.h"

namespace pipeshard {

void PairSums::add(int a, int b, int64_t bytes) {
  ending_[b] += bytes;
  if (b == a + 1) {
    adjacent_[b] += bytes;
  } else {
    far_.push_back({a, b, bytes});
  }
}

void PairSums::addChain(const std::vector<int>& layers, int64_t bytes) {
  for (size_t i = 1; i < layers.size(); ++i) add(layers[i - 1], layers[i], bytes);
}

void PairSums::finish() {
  for (std::vector<int64_t>* sums : {&adjacent_, &ending_})
    std::partial_sum(sums->begin(), sums->end(), sums->begin());
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
    for (size_t i = 0; i + 2 * width <= levels_.front().size(); ++i)
      level.push_back(std::max(half[i], half[i + width]));
    levels_.push_back(std::move(level));
  }
}

int64_t RangeMaximum::of(int first, int last) const {
  const auto length = static_cast<unsigned>(last - first + 1);
  const size_t level = std::bit_width(length) - 1;
  const std::vector<int64_t>& maxima = levels_[level];
  return std::max(maxima[first], maxima[static_cast<size_t>(last + 1) - (size_t{1} << level)]);
}

namespace {

// What alignment and gaps between buffers add: one part in so many. (Measured: one in 200 on average, one in
// 16 at most, of few large buffers.)
constexpr int64_t kGaps = 32;

template <typename Bytes>
RangeMaximum maximumOf(const std::vector<const PricedStage*>& layers, const Bytes& bytes) {
  std::vector<int64_t> values;
  for (size_t layer = 0; layer < layers.size(); ++layer)
    values.push_back(layers[layer] == nullptr ? 0 : bytes(*layers[layer], layer));
  return RangeMaximum(std::move(values));
}

bool has(const std::vector<int>& layers, int layer) {
  return std::binary_search(layers.begin(), layers.end(), layer);
}

// Layers whose forward or backward passes read what another layer's forward pass makes.
std::vector<int> takersOf(const CrossingValue& crossing) {
  if (crossing.made < 0 || crossing.gradient) return {};
  std::vector<int> takers;
  std::set_union(crossing.forward.begin(), crossing.forward.end(), crossing.waits.begin(),
                 crossing.waits.end(), std::back_inserter(takers));
  std::erase(takers, crossing.made);
  return takers;
}

}  // namespace

// What one layer adds. `handed_on`: bytes that other layers make and its passes read.
RunCosts::Sums RunCosts::ownSums(const PricedStage& of, int64_t handed_on) {
  Sums own{};
  own[kForward] = of.forward_ns;
  own[kInput] = of.backward_input_ns;
  own[kWeight] = of.backward_weight_ns;
  own[kCommunication] = of.communication_ns;
  own[kUpdate] = of.update_ns;
  own[kSynchronization] = of.synchronization_ns;
  own[kWeights] = of.weight_bytes;
  own[kGradients] = of.gradient_bytes;
  own[kStates] = of.optimizer_bytes;
  own[kWaiting] = of.waiting_bytes;
  own[kInputs] = of.input_bytes;
  own[kWaitingInputs] = of.waiting_input_bytes;
  own[kHandedOn] = handed_on;
  own[kEarly] = of.early_bytes;
  own[kHanded] = of.handed_bytes;
  own[kOutputs] = of.output_bytes;
  own[kSummands] = of.summand_bytes;
  own[kWholeGradients] = of.whole_gradient_bytes;
  own[kSynchronized] = of.synchronized_bytes;
  own[kConstants] = of.constant_bytes;
  own[kOnceByLayers] = of.once_by_layers_ns;
  own[kOnceSelectively] = of.once_selectively_ns;
  own[kKept] = of.kept_bytes;
  own[kKeptWaiting] = of.kept_waiting_bytes;
  own[kLate] = of.waiting_bytes - of.early_bytes;
  return own;
}

RunCosts::RunCosts(const TrainingGraph& training, const LayerPieces& pieces,
                   const std::vector<const PricedStage*>& layers, std::vector<int64_t> crossing_bytes,
                   std::vector<int64_t> exchange_ns, std::vector<int64_t> shared_bytes,
                   const EmissionRules& rules)
    : pieces_(pieces),
      crossing_bytes_(std::move(crossing_bytes)),
      exchange_ns_(std::move(exchange_ns)),
      rules_(rules),
      one_microbatch_(training.microbatches == 1),
      sums_(1),
      impossible_(1),
      waiting_(layers.size()),
      inputs_(layers.size()),
      handed_on_(layers.size()),
      weights_(layers.size()),
      passing_(layers.size()),
      handed_ends_(layers.size()),
      shared_bytes_(std::move(shared_bytes)),
      discarding_alone_(maximumOf(layers, [](const PricedStage& of, size_t) { return of.discarding.alone; })),
      discarding_inside_({}),
      update_peaks_(maximumOf(layers, [](const PricedStage& of, size_t) { return of.update_bytes; })),
      synchronization_peaks_(
          maximumOf(layers, [](const PricedStage& of, size_t) { return of.synchronization_workspace; })),
      again_by_layers_({}),
      again_selectively_({}) {
  for (int64_t& bytes : crossing_bytes_) bytes = placedBytes(bytes);
  std::vector<int64_t> handed_on(layers.size());
  for (size_t index = 0; index < pieces_.crossings.size(); ++index) {
    const std::vector<int> takers = takersOf(pieces_.crossings[index]);
    for (int layer : takers) handed_on[layer] += crossing_bytes_[index];
    handed_on_.addChain(takers, crossing_bytes_[index]);
  }
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    static constexpr PricedStage kNone;
    const PricedStage& of = layers[layer] == nullptr ? kNone : *layers[layer];
    const Sums own = ownSums(of, handed_on[layer]);
    handed_ends_[layer] = of.handed_end_bytes;
    Sums next = sums_.back();
    for (size_t field = 0; field < own.size(); ++field) next[field] += own[field];
    sums_.push_back(next);
    impossible_.push_back(impossible_.back() + (layers[layer] == nullptr ? 1 : 0));
  }
  addPairs();
  discarding_inside_ = maximumOf(
      layers, [&](const PricedStage& of, size_t layer) { return passing_[layer] + of.discarding.inside; });
  findPasses(layers);
  again_by_layers_ = layersAgain(layers, Keeps::kHandedOn);
  again_selectively_ = layersAgain(layers, Keeps::kProductsToo);
}

RunCosts::Profile::Profile(std::vector<int64_t> before, std::vector<int64_t> behind,
                           const std::vector<int64_t>& more, const std::vector<PricedPeak>& excess,
                           const std::vector<PricedPeak>& workspace)
    : before_(std::move(before)), behind_(std::move(behind)), most_({}), workspace_({}) {
  std::vector<int64_t> values, workspaces;
  for (size_t layer = 0; layer + 1 < before_.size(); ++layer) {
    const int64_t buffers = before_[layer + 1] - behind_[layer] + (layer > 0 ? more[layer - 1] : 0);
    alone_.push_back(buffers + excess[layer].alone);
    workspace_alone_.push_back(workspace[layer].alone);
    values.push_back(buffers + excess[layer].inside);
    workspaces.push_back(workspace[layer].inside);
  }
  most_ = RangeMaximum(std::move(values));
  workspace_ = RangeMaximum(std::move(workspaces));
}

int64_t RunCosts::Profile::of(int first, int last) const {
  const int64_t most = first == last ? alone_[first] : most_.of(first, last);
  return most - before_[first] + behind_[static_cast<size_t>(last) + 1];
}

int64_t RunCosts::Profile::workspace(int first, int last) const {
  return first == last ? workspace_alone_[first] : workspace_.of(first, last);
}

// What waits for two neighbours is there once. (Layers further apart are few: it counts in each of them.)
RunCosts::Profile RunCosts::profileOf(const std::vector<const PricedStage*>& layers, PassesOf passes,
                                      size_t piece, const std::vector<Field>& before,
                                      const std::vector<Field>& behind) const {
  const bool shares_waiting = before.front() != kEarly;
  std::vector<int64_t> sums[2];
  for (size_t layer = 0; layer < sums_.size(); ++layer) {
    const auto add = [&, layer](std::vector<int64_t>& to, const std::vector<Field>& fields) {
      to.push_back(0);
      for (const Field field : fields) to.back() += sums_[layer][field];
    };
    add(sums[0], before);
    add(sums[1], behind);
    if (shares_waiting && layer > 0) sums[0].back() -= waiting_.upTo(static_cast<int>(layer) - 1);
  }
  std::vector<PricedPeak> excess(layers.size()), workspace(layers.size());
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    if (layers[layer] == nullptr) continue;
    excess[layer] = (layers[layer]->*passes).excesses[piece];
    workspace[layer] = (layers[layer]->*passes).workspaces[piece];
    excess[layer].inside += passing_[layer];
    workspace[layer].inside += passing_[layer];
  }
  const std::vector<int64_t> nothing(layers.size());
  return Profile(sums[0], sums[1], shares_waiting ? nothing : handed_ends_, excess, workspace);
}

void RunCosts::findPasses(const std::vector<const PricedStage*>& layers) {
  std::vector<Field> made = {kSummands};
  if (one_microbatch_) made.push_back(kGradients);
  for (Passes* passes : {&whole_, &halved_}) {
    const PassesOf of = passes == &whole_ ? &PricedStage::whole : &PricedStage::halved;
    passes->forward = profileOf(layers, of, 0, {kWaiting}, {});
    passes->by_layers = layersAlone(layers, of, Keeps::kHandedOn);
    passes->selectively = layersAlone(layers, of, Keeps::kProductsToo);
  }
  whole_.backward = profileOf(layers, &PricedStage::whole, 1, {kWaiting}, made);
  halved_.backward = profileOf(layers, &PricedStage::halved, 1, {kEarly}, {kHanded});
  halved_.weight_half = profileOf(layers, &PricedStage::halved, 2, {kLate, kHanded}, made);
}

void RunCosts::addPairs() {
  for (size_t index = 0; index < pieces_.crossings.size(); ++index) {
    const CrossingValue& crossing = pieces_.crossings[index];
    const int64_t bytes = crossing_bytes_[index];
    waiting_.addChain(crossing.waits, bytes);
    if (crossing.made < 0) inputs_.addChain(crossing.readers, bytes);
    for (int layer = crossing.first() + 1; layer < crossing.last(); ++layer) {
      const bool held = layer == crossing.made || has(crossing.readers, layer);
      const bool kept = !crossing.waits.empty() && crossing.waits.front() < layer;
      if (!held && !kept) passing_[layer] += bytes;
    }
  }
  for (size_t index = 0; index < pieces_.shared.size(); ++index) {
    shared_bytes_[index] = placedBytes(shared_bytes_[index]);
    weights_.addChain(pieces_.shared[index].layers, shared_bytes_[index]);
  }
  for (PairSums* sums : {&waiting_, &inputs_, &handed_on_, &weights_}) sums->finish();
}

// What a layer that recomputes keeps of what its backward pass reads.
int64_t RunCosts::keptOf(const PricedStage& of, int layer, Keeps keeps) const {
  return sum(kHandedOn, layer, layer) + sum(kInputs, layer, layer) +
         (keeps == Keeps::kProductsToo ? of.kept_waiting_bytes : 0);
}

// By layer: what its passes hold besides what it keeps, with what passes by, and less what is not
// there yet when they run, but when all is done (doneBehind): with one microbatch accumulators of it and of
// layers before it, and gradients that are synchronised in its buckets and in theirs. What layers behind it
// kept is gone when its backward pass runs (keptUpTo).
RangeMaximum RunCosts::layersAlone(const std::vector<const PricedStage*>& layers, PassesOf passes,
                                   Keeps keeps) const {
  return maximumOf(layers, [&](const PricedStage& of, size_t layer) {
    const int at = layer;
    const int64_t peak = passing_[layer] - keptOf(of, at, keeps) + (of.*passes).peak_bytes;
    // the first of them during its own passes
    const bool several = of.whole_gradient_bytes > rules_.given.bucket_bytes;
    return peak - doneBehind(several ? at - 1 : at, kSynchronized) - doneBehind(at, kGradients) +
           keptUpTo(at, keeps);
  });
}

RangeMaximum RunCosts::layersAgain(const std::vector<const PricedStage*>& layers, Keeps keeps) const {
  return maximumOf(layers, [&](const PricedStage& of, size_t layer) {
    return std::max<int64_t>(0, of.waiting_bytes - keptOf(of, static_cast<int>(layer), keeps)) +
           of.whole.workspaces[0].alone;
  });
}

int64_t RunCosts::keptUpTo(int last, Keeps keeps) const {
  const Sums& sums = sums_[static_cast<size_t>(last) + 1];
  return sums[kHandedOn] - handed_on_.endingUpTo(last) + (keeps == Keeps::kProductsToo ? sums[kKept] : 0);
}

int64_t RunCosts::doneBehind(int last, Field field) const {
  const bool counts = field == kGradients ? one_microbatch_ : rules_.given.bucket_bytes > 0;
  return counts ? sums_[last + 1][field] : 0;
}

bool RunCosts::possible(int first, int last) const {
  return impossible_[static_cast<size_t>(last) + 1] == impossible_[first];
}

int64_t RunCosts::sum(Field field, int first, int last) const {
  return sums_[static_cast<size_t>(last) + 1][field] - sums_[first][field];
}

int64_t RunCosts::exchange(int first, int last) const {
  int64_t ns = 0;
  for (size_t index = 0; index < pieces_.shared.size(); ++index) {
    const std::vector<int>& layers = pieces_.shared[index].layers;
    const auto inside = std::count_if(layers.begin(), layers.end(),
                                      [&](int layer) { return first <= layer && layer <= last; });
    if (inside > 0 && inside < std::ssize(layers)) ns += exchange_ns_[index];
  }
  return ns;
}

// Of parts of gradients that the run's updates need and others make: received and added up behind the passes.
int64_t RunCosts::joined(int first, int last) const {
  int64_t bytes = 0;
  for (size_t index = 0; index < pieces_.shared.size(); ++index) {
    const SharedParameter& shared = pieces_.shared[index];
    const bool owner =
        !shared.layers.empty() && first <= shared.layers.front() && shared.layers.front() <= last;
    const bool others = owner && !shared.gradients.empty() &&
                        (shared.gradients.front() < first || shared.gradients.back() > last);
    if (others) bytes += 2 * shared_bytes_[index];
  }
  return bytes;
}

RunCosts::Ends RunCosts::endsOf(int first, int last) const {
  Ends ends;
  const auto anyInside = [&](const std::vector<int>& layers) {
    const auto next = std::lower_bound(layers.begin(), layers.end(), first);
    return next != layers.end() && *next <= last;
  };
  const auto visit = [&](int cut, const auto& add) {
    for (int number : pieces_.at_cut[cut]) add(pieces_.crossings[number], crossing_bytes_[number]);
  };
  if (first > 0) {
    visit(first - 1, [&](const CrossingValue& crossing, int64_t bytes) {
      if (crossing.gradient) {
        if (first <= crossing.made && crossing.made <= last) ends.leaving_gradients += bytes;
      } else if (anyInside(crossing.forward)) {
        ends.entering += bytes;
        if (anyInside(crossing.waits)) ends.entering_waiting += bytes;
      }
    });
  }
  visit(last, [&](const CrossingValue& crossing, int64_t bytes) {
    if (crossing.gradient) {
      if (crossing.made > last && anyInside(crossing.readers)) ends.entering_gradients += bytes;
    } else if (first <= crossing.made && crossing.made <= last) {
      ends.leaving += bytes;
      if (anyInside(crossing.waits)) ends.leaving_waiting += bytes;
    }
  });
  return ends;
}

StageCostParts RunCosts::of(int first, int last, Recomputation recomputation) const {
  PIPESHARD_CHECK(possible(first, last), "layers {} to {} cannot be in this way", first, last);
  StageCostParts parts;
  parts.forward_ns = sum(kForward, first, last);
  parts.backward_input_ns = sum(kInput, first, last);
  parts.backward_weight_ns = sum(kWeight, first, last);
  parts.communication_ns = sum(kCommunication, first, last);
  parts.update_ns = sum(kUpdate, first, last);
  parts.synchronization_ns = sum(kSynchronization, first, last) + exchange(first, last);
  parts.weight_bytes = sum(kWeights, first, last) - weights_.within(first, last);
  parts.gradient_bytes = sum(kGradients, first, last);
  parts.optimizer_bytes = sum(kStates, first, last);
  addPassMemory(first, last, recomputation, parts);
  return parts;
}

// Of a run whose layers recompute: what the passes of one of them hold besides what is kept.
int64_t RunCosts::recomputedBytes(int first, int last, Recomputation recomputation,
                                  const Passes& passes) const {
  const bool selective = recomputation == Recomputation::kSelective;
  const int64_t peak = (selective ? passes.selectively : passes.by_layers).of(first, last) -
                       keptUpTo(last, selective ? Keeps::kProductsToo : Keeps::kHandedOn);
  return peak + doneBehind(last, kSynchronized) + doneBehind(last, kGradients);
}

// Gradients are reduced in the background while the backward pass goes on.
bool RunCosts::postsGradients(int first, int last) const {
  const int64_t bucket = rules_.given.bucket_bytes;
  return bucket > 0 && sum(kWholeGradients, first, last) > bucket;
}

// Of the backward pass, or the larger one of its halves, besides what waits for it. A message is freed when a
// later one proves that it came: beside a backward pass lies the activation that was sent last (`sent`), and
// the gradient that was sent before. What waits and was sent is there to the end (ends.leaving). A gradient
// that enters a run of several layers is among what their workspaces hold (PricedPeak::inside).
int64_t RunCosts::backwardBytes(int first, int last, const Ends& ends, int64_t sent, bool whole) const {
  const int64_t received = first == last ? ends.entering_gradients : 0;
  const int64_t buckets = postsGradients(first, last) ? sum(kSynchronized, first, last) : 0;
  const int64_t made = sum(kSummands, first, last) + (one_microbatch_ ? sum(kGradients, first, last) : 0);
  const int64_t waiting = sum(kWaiting, first, last) - waiting_.within(first, last);
  // of `there` at the beginning: what is made beside all of it, or in the course of the layers
  const auto least = [&](const Profile& profile, int64_t made_beside, int64_t there) {
    return std::min(made_beside + profile.workspace(first, last) + sent,
                    profile.of(first, last) - there + ends.leaving);
  };
  if (whole) return least(*whole_.backward, made, waiting) + received + buckets;
  const int64_t handed = sum(kHanded, first, last), early = sum(kEarly, first, last);
  const int64_t entering = std::max<int64_t>(0, received - handed_ends_[last]);
  const int64_t input_half = least(*halved_.backward, handed, early) + entering;
  const int64_t weight_half = least(*halved_.weight_half, handed + made - early, waiting) + buckets;
  return std::max(input_half, weight_half) + 2 * ends.leaving_gradients;
}

// Of what is there behind all passes.
int64_t RunCosts::updateBytes(int first, int last) const {
  const int64_t accumulators = one_microbatch_ ? sum(kGradients, first, last) : 0;
  const int64_t workspace = std::max(update_peaks_.of(first, last), synchronization_peaks_.of(first, last));
  return sum(kSynchronized, first, last) + joined(first, last) + accumulators + workspace;
}

void RunCosts::addPassMemory(int first, int last, Recomputation recomputation, StageCostParts& parts) const {
  const Ends ends = endsOf(first, last);
  const bool whole = ends.leaving_gradients == 0, alone = first == last;
  const bool kept = recomputation == Recomputation::kNever, by_layers = isByLayers(recomputation);
  const int64_t waiting = sum(kWaiting, first, last) - waiting_.within(first, last);
  const int64_t waiting_inputs = sum(kWaitingInputs, first, last);
  const int64_t inputs = sum(kInputs, first, last) - inputs_.within(first, last);
  const int64_t sent = ends.leaving - (kept ? ends.leaving_waiting : 0);
  const int64_t discarding = (alone || by_layers ? discarding_alone_ : discarding_inside_).of(first, last);
  const int64_t read = std::max<int64_t>(0, inputs - waiting_inputs) + ends.entering - ends.entering_waiting +
                       sum(kOutputs, first, last);
  // of a forward pass whose `waiting` is counted elsewhere
  const auto making = [&](const Passes& passes) { return passes.forward->of(first, last) - waiting; };
  const auto forward = [&](const Passes& passes) { return read + (kept ? making(passes) : discarding); };
  parts.activation_bytes = kept ? waiting : inputs + (by_layers ? 0 : ends.entering);
  int64_t remade = 0;  // of the microbatch that runs
  if (!kept) {
    const bool selective = recomputation == Recomputation::kSelective;
    const int64_t anyway =
        std::max<int64_t>(0, ends.entering_waiting + waiting_inputs - inputs_.within(first, last));
    remade = waiting - anyway - (selective ? sum(kKeptWaiting, first, last) : 0);
    parts.recomputation_ns = parts.forward_ns;
    if (by_layers) {
      parts.recomputation_ns -= sum(selective ? kOnceSelectively : kOnceByLayers, first, last);
      parts.activation_bytes += sum(kHandedOn, first, last) - handed_on_.within(first, last);
      if (selective) parts.activation_bytes += sum(kKept, first, last);
    }
  }
  const int64_t update = updateBytes(first, last) - parts.activation_bytes;
  const int64_t received = rules_.early_receives ? ends.entering + ends.entering_gradients : 0;
  const int64_t in_background = postsGradients(first, last) ? synchronization_peaks_.of(first, last) : 0;
  const int64_t beside = received + in_background + sum(kConstants, first, last);
  const auto backward = [&](const Passes& passes, bool in_one) {
    return remade + std::max(backwardBytes(first, last, ends, sent, in_one), kept ? 0 : making(passes));
  };
  const Passes& passes = whole ? whole_ : halved_;
  const int64_t halves = backward(halved_, false);
  const int64_t run =
      by_layers ? recomputedBytes(first, last, recomputation, passes) + sent + ends.leaving_gradients
      : whole   ? backward(whole_, true)
                : halves;
  parts.sent_bytes = sent;
  parts.sent_gradient_bytes = ends.leaving_gradients;
  parts.remade_bytes = std::max<int64_t>(0, remade + sum(kHanded, first, last) - sum(kEarly, first, last));
  parts.forward_transient_bytes = forward(passes) + beside;
  if (!kept) {
    const RangeMaximum& of_layers =
        recomputation == Recomputation::kSelective ? again_selectively_ : again_by_layers_;
    parts.again_transient_bytes = (by_layers ? of_layers.of(first, last) : remade + making(passes)) + beside;
  }
  parts.halved_transient_bytes =
      std::max({forward(halved_) + sent, halves - parts.remade_bytes, update}) + beside;
  parts.transient_bytes = std::max({forward(passes) + sent, run, update}) + beside;
  for (int64_t* bytes : {&parts.forward_transient_bytes, &parts.again_transient_bytes,
                         &parts.halved_transient_bytes, &parts.transient_bytes})
    *bytes += (*bytes + parts.activation_bytes) / kGaps;
}

}  // namespace pipeshard
