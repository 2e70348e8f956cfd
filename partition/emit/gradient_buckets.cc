#include "partition/emit/gradient_buckets.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include <fmt/format.h>

#include "ir/base/error.h"
#include "partition/emit/graph_segments.h"
#include "sharding/specs/cost_model.h"

namespace pipeshard {
namespace {

bool isPass(const Program& program, const Instruction& instruction) {
  if (instruction.kind != InstructionKind::kRun) return false;
  return isPass(program.subgraphs[instruction.subgraph.index()].phase);
}

bool isBackwardPass(const Program& program, const Instruction& instruction) {
  return isPass(program, instruction) && isBackward(program.subgraphs[instruction.subgraph.index()].phase);
}

// A sum over devices in place.
bool isSum(const Program& program, const Instruction& instruction) {
  return instruction.kind == InstructionKind::kAllReduce && instruction.inputs == instruction.outputs &&
         program.buffer(instruction.inputs[0]).kind == BufferKind::kGradient;
}

// Input i is resharded to output i; for all i in one subgraph.
bool isResharding(const Program& program, const Instruction& instruction) {
  if (instruction.kind != InstructionKind::kRun || instruction.inputs.size() != instruction.outputs.size())
    return false;
  const Subgraph& subgraph = program.subgraphs[instruction.subgraph.index()];
  return subgraph.phase == Phase::kUpdate && !subgraph.collectives.empty();
}

// A gradient whose synchronization may come right behind its accumulation.
struct Candidate {
  BufferId gradient;
  size_t accumulation = 0;           // instruction
  size_t output = 0;                 // of the pass
  size_t node = 0;                   // of the pass's graph, which makes it
  std::vector<size_t> sums = {};     // instructions, in order
  std::optional<size_t> resharding;  // behind them: the instruction of which it is one input
};

// One pass, and what it finishes, by bucket.
struct CutPass {
  std::vector<std::vector<Candidate>> buckets;
  size_t posted = 0;  // buckets that go to the background: the first ones
};

// Three steps: which gradients may be synchronised early (findCandidates), which of them share a bucket
// (fillBuckets), and the new list of instructions (rewrite).
//
// A candidate was last touched by the accumulation of what a backward pass has made, and by nothing since
// that pass: so its accumulation, and the sums or the resharding behind it, may move up to right behind the
// node that makes it. Candidates of a pass fill buckets in the order of these nodes. A bucket is full with
// max(bucket_bytes, total / kMostBuckets) bytes of whole tensors, so there are at most kMostBuckets:
//
//   gradients of 10, 10, 10 and 30 MiB with buckets of 25 MiB: {10, 10, 10}, {30}
//
// Numbers of instructions (in Candidate and CutPass) are those of the old list until rewrite has made the new
// one: what it leaves out at its old place (`gone`, `resharded`) is what runInSegments puts behind the run of
// its bucket. Of a bucket that is not posted only the accumulations move.
class BucketPoster {
 public:
  BucketPoster(RankProgram& rank, int64_t bucket_bytes, const std::string& separator)
      : rank_(rank), program_(rank.program), bucket_bytes_(bucket_bytes), separator_(separator) {}

  void run() {
    std::map<size_t, std::vector<Candidate>> by_pass = findCandidates();
    std::map<size_t, CutPass> passes;
    for (auto& [pass, candidates] : by_pass) {
      CutPass cut = fillBuckets(pass, std::move(candidates));
      if (cut.posted > 0) passes.emplace(pass, std::move(cut));
    }
    if (passes.empty()) return;
    rewrite(passes);
    removeUnusedSubgraphs();
  }

 private:
  const Instruction& at(size_t i) const { return program_.instructions.plain()[i]; }

  // ---- which ----

  struct Touch {
    std::optional<size_t> last;        // the last instruction that reads or writes the buffer, but its sums
    std::optional<size_t> before;      // the one before that
    std::optional<size_t> last_write;  // of all
    std::vector<size_t> sums = {};     // behind `last`
  };

  std::map<size_t, std::vector<Candidate>> findCandidates() const {
    std::vector<Touch> touches(program_.buffers.size());
    std::map<size_t, std::vector<Candidate>> found;
    // by gradient: pass; reshardings are added when they come
    std::map<BufferId, std::pair<size_t, Candidate>> summed;
    for (size_t i = 0; i < program_.instructions.size(); ++i) {
      const Instruction& instruction = at(i);
      if (isSum(program_, instruction)) {
        const BufferId id = instruction.inputs[0];
        touches[id.index()].sums.push_back(i);
        note(id, touches, {}, summed);
        continue;
      }
      if (isResharding(program_, instruction)) {
        for (BufferId id : instruction.inputs) note(id, touches, i, summed);
      }
      for (const std::vector<BufferId>* ids : {&instruction.inputs, &instruction.outputs}) {
        for (BufferId id : *ids) touch(touches[id.index()], i);
      }
      for (BufferId id : instruction.outputs) touches[id.index()].last_write = i;
    }
    for (auto& [gradient, candidate] : summed) found[candidate.first].push_back(std::move(candidate.second));
    return found;
  }

  static void touch(Touch& touched, size_t i) {
    if (touched.last == i) return;
    touched.before = touched.last;
    touched.last = i;
    touched.sums.clear();
  }

  // The gradient is a candidate when the last to touch it was the accumulation of what a backward pass has
  // made, and nothing had touched it since that pass.
  void note(BufferId id, const std::vector<Touch>& touches, std::optional<size_t> resharding,
            std::map<BufferId, std::pair<size_t, Candidate>>& summed) const {
    const Touch& touched = touches[id.index()];
    summed.erase(id);
    if (!touched.last || at(*touched.last).kind != InstructionKind::kAccumulate) return;
    const Instruction& accumulation = at(*touched.last);
    if (accumulation.outputs[0] != id || accumulation.inputs[0] == id) return;
    const std::optional<size_t> pass = touches[accumulation.inputs[0].index()].last_write;
    if (!pass || !isBackwardPass(program_, at(*pass)) || (touched.before && *touched.before > *pass)) return;
    Candidate candidate{id, *touched.last, 0, 0, touched.sums, resharding};
    const std::vector<BufferId>& made = at(*pass).outputs;
    candidate.output = std::find(made.begin(), made.end(), accumulation.inputs[0]) - made.begin();
    const Graph& graph = graphOf(*pass);
    const ValueId value = graph.outputs[candidate.output];
    const auto makes = [&](const Node& node) {
      return std::find(node.outputs.begin(), node.outputs.end(), value) != node.outputs.end();
    };
    const auto maker = std::find_if(graph.nodes.begin(), graph.nodes.end(), makes);
    if (maker == graph.nodes.end()) return;
    candidate.node = maker - graph.nodes.begin();
    summed.insert({id, {*pass, std::move(candidate)}});
  }

  const Graph& graphOf(size_t run) const { return rank_.subgraphs[at(run).subgraph.index()]; }

  int64_t wholeBytes(BufferId id) const {
    return byteCount(program_.buffer(id).data_type, wholeShape(program_.buffer(id)));
  }

  CutPass fillBuckets(size_t pass, std::vector<Candidate> candidates) const {
    std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
      return std::tuple(a.node, a.output, a.gradient) < std::tuple(b.node, b.output, b.gradient);
    });
    int64_t total = 0;
    for (const Candidate& candidate : candidates) total += wholeBytes(candidate.gradient);
    const int64_t limit = std::max(bucket_bytes_, (total + kMostBuckets - 1) / kMostBuckets);
    CutPass cut;
    int64_t filled = 0;
    for (Candidate& candidate : candidates) {
      // What one node makes is in one bucket.
      if (cut.buckets.empty() || (filled >= limit && cut.buckets.back().back().node != candidate.node)) {
        cut.buckets.emplace_back();
        filled = 0;
      }
      filled += wholeBytes(candidate.gradient);
      cut.buckets.back().push_back(std::move(candidate));
    }
    // The last bucket is complete only when the pass ends: it goes to the background if a later pass
    // computes.
    bool computes_later = false;
    for (size_t i = pass + 1; i < program_.instructions.size(); ++i)
      computes_later = computes_later || isPass(program_, at(i));
    cut.posted = cut.buckets.size() - (computes_later ? 0 : 1);
    return cut;
  }

  // ---- the new program ----

  void rewrite(const std::map<size_t, CutPass>& passes) {
    std::set<size_t> gone;                           // accumulations and sums that have moved
    std::map<size_t, std::set<BufferId>> resharded;  // by resharding: inputs that have moved
    for (const auto& [pass, cut] : passes) {
      for (size_t b = 0; b < cut.buckets.size(); ++b) {
        for (const Candidate& candidate : cut.buckets[b]) {
          gone.insert(candidate.accumulation);
          if (b >= cut.posted) continue;
          gone.insert(candidate.sums.begin(), candidate.sums.end());
          if (candidate.resharding) resharded[*candidate.resharding].insert(candidate.gradient);
        }
      }
    }
    const std::vector<Instruction> old = program_.instructions.plain();
    std::vector<Instruction> rewritten;
    for (size_t i = 0; i < old.size(); ++i) {
      if (const auto pass = passes.find(i); pass != passes.end()) {
        runInSegments(pass->second, old[i], old, rewritten);
      } else if (const auto left = resharded.find(i); left != resharded.end()) {
        std::vector<BufferId> stay;
        for (BufferId id : old[i].inputs) {
          if (left->second.count(id) == 0) stay.push_back(id);
        }
        if (!stay.empty()) rewritten.push_back(reshardingOf(old[i], stay));
      } else if (gone.count(i) == 0) {
        rewritten.push_back(old[i]);
      }
    }
    program_.instructions = std::move(rewritten);
  }

  void runInSegments(const CutPass& cut, const Instruction& pass, const std::vector<Instruction>& old,
                     std::vector<Instruction>& out) {
    const std::vector<Instruction> runs = segmentsOf(cut, pass);
    for (size_t b = 0; b < cut.buckets.size(); ++b) {
      out.push_back(runs[b]);
      std::map<size_t, std::vector<BufferId>> resharded;  // by instruction
      for (const Candidate& candidate : cut.buckets[b]) out.push_back(old[candidate.accumulation]);
      if (b >= cut.posted) continue;
      for (const Candidate& candidate : cut.buckets[b]) {
        for (size_t sum : candidate.sums) {
          out.push_back(old[sum]);
          out.back().background = true;
        }
        if (candidate.resharding) resharded[*candidate.resharding].push_back(candidate.gradient);
      }
      for (const auto& [instruction, ids] : resharded) {
        out.push_back(reshardingOf(old[instruction], ids));
        out.back().background = true;
      }
    }
  }

  // The pass as one run per bucket.
  std::vector<Instruction> segmentsOf(const CutPass& cut, const Instruction& pass) {
    if (cut.buckets.size() == 1) return {pass};
    const Graph graph = rank_.subgraphs[pass.subgraph.index()];
    std::vector<size_t> segment_of_output(graph.outputs.size(), cut.buckets.size() - 1);
    for (size_t b = 0; b < cut.buckets.size(); ++b) {
      for (const Candidate& candidate : cut.buckets[b]) {  // one output may be part of several gradients
        size_t& segment = segment_of_output[candidate.output];
        segment = std::min(segment, b);
      }
    }
    const std::vector<GraphSegment> segments = cutIntoSegments(graph, segment_of_output, cut.buckets.size());
    std::map<ValueId, BufferId> buffer_of;
    for (size_t i = 0; i < graph.inputs.size(); ++i) buffer_of[graph.inputs[i]] = pass.inputs[i];
    for (size_t o = 0; o < graph.outputs.size(); ++o)
      buffer_of.try_emplace(graph.outputs[o], pass.outputs[o]);
    std::vector<Instruction> runs;
    for (size_t s = 0; s < segments.size(); ++s) {
      Instruction run = pass;
      const std::string name = fmt::format("{}_part{}of{}", program_.subgraphs[pass.subgraph.index()].name,
                                           s + 1, segments.size());
      run.subgraph = addSubgraph(
          name, pass.subgraph,
          extractSubgraph(graph, name, segments[s].nodes, segments[s].inputs, segments[s].outputs));
      const auto bind = [&](const std::vector<ValueId>& values, std::vector<BufferId>& buffers) {
        buffers.clear();
        for (ValueId id : values) {
          const auto [found, is_new] = buffer_of.try_emplace(id);
          if (is_new) found->second = handedOn(graph.value(id), pass.microbatch);
          buffers.push_back(found->second);
        }
      };
      bind(segments[s].outputs, run.outputs);
      bind(segments[s].inputs, run.inputs);
      runs.push_back(std::move(run));
    }
    return runs;
  }

  // A buffer for what one segment makes for another.
  BufferId handedOn(const Value& value, int microbatch) {
    PIPESHARD_CHECK(value.shape.has_value(), "'{}' has no shape", value.name);
    std::string name = fmt::format("{}{}{}", value.name, separator_, microbatch);
    const auto is_taken = [&](const Buffer& buffer) { return buffer.name == name; };
    while (std::any_of(program_.buffers.begin(), program_.buffers.end(), is_taken))
      name += separator_ + "part";
    program_.buffers.push_back(
        {name, BufferKind::kActivation, value.data_type, *value.shape, value.name, std::nullopt, {}});
    return BufferId(program_.buffers.size() - 1);
  }

  SubgraphId addSubgraph(const std::string& name, SubgraphId like, Graph graph) {
    Subgraph made;
    made.name = name;
    made.file = name + ".onnx";
    made.phase = program_.subgraphs[like.index()].phase;
    for (ValueId input : graph.inputs) made.inputs.push_back(graph.value(input).name);
    for (ValueId output : graph.outputs) made.outputs.push_back(graph.value(output).name);
    made.collectives = collectiveGroups(graph);
    program_.subgraphs.push_back(std::move(made));
    rank_.subgraphs.push_back(std::move(graph));
    return SubgraphId(program_.subgraphs.size() - 1);
  }

  // The part of a resharding that is about these inputs.
  Instruction reshardingOf(const Instruction& whole, const std::vector<BufferId>& ids) {
    const Graph graph = rank_.subgraphs[whole.subgraph.index()];
    std::vector<size_t> segment_of_output(graph.outputs.size(), 1);
    Instruction part = whole;
    part.inputs.clear();
    part.outputs.clear();
    std::vector<ValueId> inputs, outputs;
    for (size_t i = 0; i < whole.inputs.size(); ++i) {
      if (std::find(ids.begin(), ids.end(), whole.inputs[i]) == ids.end()) continue;
      segment_of_output[i] = 0;
      part.inputs.push_back(whole.inputs[i]);
      part.outputs.push_back(whole.outputs[i]);
      inputs.push_back(graph.inputs[i]);
      outputs.push_back(graph.outputs[i]);
    }
    const std::vector<NodeId> nodes = cutIntoSegments(graph, segment_of_output, 2)[0].nodes;
    const std::string name = fmt::format("{}_{}", program_.subgraphs[whole.subgraph.index()].name, parts_++);
    part.subgraph = addSubgraph(name, whole.subgraph, extractSubgraph(graph, name, nodes, inputs, outputs));
    return part;
  }

  void removeUnusedSubgraphs() {
    std::vector<SubgraphId> renamed(program_.subgraphs.size());
    for (const Instruction& instruction : program_.instructions) {
      if (instruction.subgraph.valid()) renamed[instruction.subgraph.index()] = instruction.subgraph;
    }
    size_t kept = 0;
    for (size_t s = 0; s < renamed.size(); ++s) {
      if (!renamed[s].valid()) continue;
      renamed[s] = SubgraphId(kept);
      if (kept != s) {
        program_.subgraphs[kept] = std::move(program_.subgraphs[s]);
        rank_.subgraphs[kept] = std::move(rank_.subgraphs[s]);
      }
      ++kept;
    }
    program_.subgraphs.resize(kept);
    rank_.subgraphs.resize(kept);
    for (Instruction& instruction : program_.instructions) {
      if (instruction.subgraph.valid()) instruction.subgraph = renamed[instruction.subgraph.index()];
    }
  }

  RankProgram& rank_;
  Program& program_;
  const int64_t bucket_bytes_;
  const std::string& separator_;
  int parts_ = 0;  // of reshardings
};

}  // namespace

void postGradientBuckets(RankProgram& rank, int64_t bucket_bytes, const std::string& separator) {
  if (bucket_bytes > 0) BucketPoster(rank, bucket_bytes, separator).run();
}

}  // namespace pipeshard
