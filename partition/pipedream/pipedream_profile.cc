#include "partition/pipedream/pipedream_profile.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <queue>

#include "ir/base/error.h"

namespace pipeshard {
namespace {

constexpr std::string_view kSeparator = " -- ";
// Of all layers, so that sums of them fit: 31 years, an exabyte.
constexpr double kMostMilliseconds = 1e12, kMostBytes = 1e18;

struct RawLayer {
  PipeDreamLayer layer;
  std::vector<size_t> readers;
  int inputs = 0;
};

// Two steps: parse reads the lines (an edge may only name layers above it), ordered puts the layers into one
// topological order, smallest number first (node2 before node10), and leaves inputs out.
//
// A layer's output crosses every cut between it and the last layer that reads it, once:
//
//   node1 (16 bytes) is read by node2 and node3, node2 (8 bytes) by node3: cut_bytes are 16, 24, 0
class ProfileParser {
 public:
  explicit ProfileParser(const std::string& source) : source_(source) {}

  void parse(std::string_view text) {
    while (!text.empty()) {
      ++line_;
      std::string_view line = text.substr(0, text.find('\n'));
      text.remove_prefix(std::min(text.size(), line.size() + 1));
      if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
      if (line.empty()) continue;
      if (line.front() == '\t') {
        addEdge(line.substr(1));
      } else {
        addLayer(line);
      }
    }
  }

  PipeDreamProfile ordered() {
    // Smallest number first among those whose inputs have been taken.
    std::priority_queue<size_t, std::vector<size_t>, std::greater<>> ready;
    std::vector<size_t> order;
    std::vector<size_t> place(layers_.size(), 0);
    sortByNumber();
    for (size_t i = 0; i < layers_.size(); ++i) {
      if (layers_[i].inputs == 0) ready.push(i);
    }
    while (!ready.empty()) {
      const size_t next = ready.top();
      ready.pop();
      place[next] = order.size();
      order.push_back(next);
      for (const size_t reader : layers_[next].readers) {
        if (--layers_[reader].inputs == 0) ready.push(reader);
      }
    }
    if (order.size() != layers_.size())
      fail(ErrorCode::kBadModel, "{}: the edges form a circle; a profile is a graph without one", source_);
    return withoutInputs(order, place);
  }

 private:
  [[noreturn]] void failAtLine(std::string_view what) const {
    fail(ErrorCode::kBadModel, "{}: line {}: {}", source_, line_, what);
  }

  static bool isInput(const PipeDreamLayer& layer) { return layer.description.starts_with("Input"); }

  double number(std::string_view text) const {
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || !(value >= 0) || value > 1e15) {
      failAtLine(fmt::format("\"{}\" is no number of 0 or more", text));
    }
    return value;
  }

  // The value of `key=`; "[8.0; 16.0]" is a sum.
  double field(std::string_view fields, std::string_view key) const {
    const size_t at = fields.find(fmt::format("{}=", key));
    if (at == std::string_view::npos) failAtLine(fmt::format("expected \"{}=NUMBER\"", key));
    std::string_view text = fields.substr(at + key.size() + 1);
    if (!text.starts_with('[')) return number(text.substr(0, text.find(',')));
    text = text.substr(1, text.find(']') - 1);
    double sum = 0;
    while (!text.empty()) {
      const std::string_view part = text.substr(0, text.find(';'));
      sum += number(part);
      text.remove_prefix(std::min(text.size(), part.size() + 1));
      while (text.starts_with(' ')) text.remove_prefix(1);
    }
    return sum;
  }

  void addLayer(std::string_view line) {
    const size_t name_end = line.find(kSeparator);
    const size_t fields_begin = line.find(" -- forward_compute_time=");
    if (name_end == std::string_view::npos || fields_begin == std::string_view::npos ||
        fields_begin < name_end + kSeparator.size()) {
      failAtLine(
          "expected \"NODE -- DESCRIPTION -- forward_compute_time=MS, backward_compute_time=MS, "
          "activation_size=BYTES, parameter_size=BYTES\", or an edge behind a tab");
    }
    std::string_view fields = line.substr(fields_begin + kSeparator.size());
    fields = fields.substr(0, fields.find(kSeparator));  // stage_id of a plan may follow
    RawLayer raw;
    raw.layer.name = line.substr(0, name_end);
    raw.layer.description =
        line.substr(name_end + kSeparator.size(), fields_begin - name_end - kSeparator.size());
    const auto amount = [&](std::string_view key, double most, double& total) {
      const double found = field(fields, key);
      total += found;
      if (total > most)
        failAtLine(fmt::format("the {} of all layers up to here is more than {:g}", key, most));
      return found;
    };
    raw.layer.compute_ns =
        std::llround(amount("forward_compute_time", kMostMilliseconds, milliseconds_) * 1e6) +
        std::llround(amount("backward_compute_time", kMostMilliseconds, milliseconds_) * 1e6);
    raw.layer.activation_bytes = std::llround(amount("activation_size", kMostBytes, activation_bytes_));
    raw.layer.parameter_bytes = std::llround(amount("parameter_size", kMostBytes, parameter_bytes_));
    if (!index_.try_emplace(raw.layer.name, layers_.size()).second)
      failAtLine(fmt::format("a second layer {}", raw.layer.name));
    layers_.push_back(std::move(raw));
  }

  void addEdge(std::string_view line) {
    const size_t end = line.find(kSeparator);
    if (end == std::string_view::npos) failAtLine("expected \"NODE -- NODE\" behind the tab");
    const auto find = [&](std::string_view name) {
      const auto found = index_.find(name);
      if (found == index_.end()) failAtLine(fmt::format("an edge of {}, which is no layer above", name));
      return found->second;
    };
    const size_t from = find(line.substr(0, end));
    const size_t to = find(line.substr(end + kSeparator.size()));
    layers_[from].readers.push_back(to);
    ++layers_[to].inputs;
  }

  // node2 before node10: by the digits at the end, then by name.
  void sortByNumber() {
    const auto key = [](const RawLayer& raw) {
      const size_t digits = raw.layer.name.find_last_not_of("0123456789") + 1;
      return std::make_tuple(raw.layer.name.size() - digits, std::string_view(raw.layer.name).substr(digits),
                             raw.layer.name);
    };
    std::vector<size_t> order(layers_.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::sort(order.begin(), order.end(),
              [&](size_t a, size_t b) { return key(layers_[a]) < key(layers_[b]); });
    std::vector<size_t> place(order.size());
    for (size_t i = 0; i < order.size(); ++i) place[order[i]] = i;
    std::vector<RawLayer> sorted;
    for (const size_t i : order) {
      sorted.push_back(std::move(layers_[i]));
      for (size_t& reader : sorted.back().readers) reader = place[reader];
    }
    layers_ = std::move(sorted);
  }

  PipeDreamProfile withoutInputs(const std::vector<size_t>& order, const std::vector<size_t>& place) {
    PipeDreamProfile profile;
    std::vector<size_t> kept;
    for (const size_t i : order) {
      if (!isInput(layers_[i].layer)) kept.push_back(i);
    }
    if (kept.empty())
      fail(ErrorCode::kBadModel, "{}: no layers; expected the text that PipeDream's profiler writes",
           source_);
    for (const size_t i : kept) profile.layers.push_back(layers_[i].layer);
    for (size_t k = 0; k < kept.size(); ++k) {
      size_t last = place[kept[k]];
      for (const size_t reader : layers_[kept[k]].readers) last = std::max(last, place[reader]);
      for (size_t cut = k; cut < kept.size() && place[kept[cut]] < last; ++cut) {
        profile.layers[cut].cut_bytes += profile.layers[k].activation_bytes;
      }
    }
    return profile;
  }

  const std::string& source_;
  int line_ = 0;
  double milliseconds_ = 0, activation_bytes_ = 0, parameter_bytes_ = 0;  // of all layers so far
  std::vector<RawLayer> layers_;
  std::map<std::string, size_t, std::less<>> index_;
};

}  // namespace

int64_t PipeDreamProfile::computeNs() const {
  int64_t sum = 0;
  for (const PipeDreamLayer& layer : layers) sum += layer.compute_ns;
  return sum;
}

PipeDreamProfile parsePipeDreamProfile(std::string_view text, const std::string& source) {
  ProfileParser parser(source);
  parser.parse(text);
  return parser.ordered();
}

}  // namespace pipeshard
