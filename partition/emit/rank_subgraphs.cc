#include "partition/emit/rank_subgraphs.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "ir/base/error.h"
#include "ir/base/ids_format.h"
#include "partition/emit/sharded_pieces.h"
#include "sharding/specs/cost_model.h"

namespace pipeshard {
namespace {

constexpr std::string_view kSubgraphNames[kPhaseCount] = {"prologue",       "forward",         "backward",
                                                          "backward_input", "backward_weight", "update"};

}  // namespace

void refuseOrder(StageId stage) {
  fail(ErrorCode::kConfiguration,
       "stages[{}].devices: the devices exchange parts of tensors; expected them in ascending order", stage);
}

RankSubgraphs::RankSubgraphs(const EmissionContext& context, RankId rank, RankGroups groups,
                             RankQuestions& questions)
    : context_(context),
      training_(context.family.base()),
      rank_(rank),
      place_(context.layout.place(rank)),
      groups_(std::move(groups)),
      questions_(questions) {}

// "forward", or "stage4_forward" on a rank of several stages; "recomputation_layer3" of a part of a stage;
// where the rank has microbatches of several sizes "forward_rows2".
std::string RankSubgraphs::nameOf(StageId stage, Phase phase, PassForm form, size_t part,
                                  int64_t rows) const {
  std::string name(form == PassForm::kAgain ? "recomputation" : kSubgraphNames[static_cast<size_t>(phase)]);
  if (form == PassForm::kDiscarding) name += "_discarding";
  if (form == PassForm::kAgain || form == PassForm::kRemade) {
    const std::vector<RecomputedPart>& parts = context_.cut.recomputation(stage).parts;
    if (parts.size() > 1) name += fmt::format("_layer{}", parts[part].layer);
  }
  if (phase != Phase::kPrologue && context_.layout.stagesOf(place_.group).size() > 1)
    name = fmt::format("stage{}_{}", stage, name);
  std::set<int64_t> sizes;
  for (int64_t k = 0; k < context_.schedule.microbatches; ++k) {
    if (context_.layout.takes(rank_, k)) sizes.insert(context_.layout.microbatch(k).count);
  }
  return phase == Phase::kUpdate || sizes.size() == 1 ? name : name + fmt::format("_rows{}", rows);
}

SubgraphId RankSubgraphs::of(StageId stage, Phase phase, PassForm form, size_t part, int64_t rows) {
  // Where the stage is one part, its backward pieces are those of any microbatch.
  if (form == PassForm::kRemade && context_.cut.recomputation(stage).parts.size() == 1)
    form = PassForm::kWhole;
  const auto [found, is_new] = subgraph_of_.try_emplace({stage, phase, form, part, rows});
  if (!is_new) return found->second;
  Subgraph made;
  made.name = nameOf(stage, phase, form, part, rows);
  made.phase = phase;
  made.recomputation = form == PassForm::kAgain;
  found->second = make(stage, context_.cut.piece(stage, phase, form, part), rows, std::move(made));
  return found->second;
}

SubgraphId RankSubgraphs::ofCopies(StageId stage, const Piece& piece) {
  const auto [found, is_new] = copies_of_.try_emplace({stage, piece.nodes});
  if (!is_new) return found->second;
  Subgraph made;
  made.name = "weight_copies";
  if (context_.layout.stagesOf(place_.group).size() > 1)
    made.name = fmt::format("stage{}_{}", stage, made.name);
  // others of the stage: of weights whose versions change apart
  const auto of_stage = std::count_if(copies_of_.begin(), copies_of_.end(),
                                      [&](const auto& entry) { return entry.first.first == stage; });
  if (of_stage > 1) made.name += fmt::format("_{}", of_stage - 1);
  made.phase = Phase::kPrologue;
  found->second = make(stage, piece, context_.family.largestMicrobatch(), std::move(made));
  return found->second;
}

SubgraphId RankSubgraphs::make(StageId stage, const Piece& piece, int64_t rows, Subgraph made) {
  const TrainingFamily& family = context_.family;
  const auto counterparts = [&](const std::vector<ValueId>& values) {
    std::vector<ValueId> result;
    for (ValueId value : values) result.push_back(family.valueAt(rows, value));
    return result;
  };
  made.file = made.name + ".onnx";
  for (ValueId input : piece.inputs) made.inputs.push_back(training_.graph.value(input).name);
  for (ValueId output : piece.outputs) made.outputs.push_back(training_.graph.value(output).name);
  const auto extract = [&] {
    return extractSubgraph(family.at(rows).graph, made.name, piece.nodes, counterparts(piece.inputs),
                           counterparts(piece.outputs));
  };
  Graph graph;
  const bool totals =
      !piece.nodes.empty() && training_.node_phase[piece.nodes.front().index()] == Phase::kPrologue;
  if (!isSharded() || totals) {
    graph = extract();
  } else {
    const LocalPiece& local =
        context_.pieces->of(stage, made.name, rows, piece.nodes, place_.position, groups_.mesh, extract);
    questions_.ask(fmt::format("stage {} {} of {}", stage, made.name, rows),
                   [&context = context_, stage, name = made.name, rows](RankId rank) {
                     const DeviceId device = context.layout.place(rank).position;
                     return RankAnswer{context.pieces->placeOf(stage, name, rows, device), {}, {}, {}};
                   });
    const auto gathers = [](const Node& node) {
      return collectiveKind(node).value_or(CollectiveKind::kAllReduce) != CollectiveKind::kAllReduce;
    };
    if (!groups_.in_order && std::any_of(local.graph.nodes.begin(), local.graph.nodes.end(), gathers))
      refuseOrder(stage);
    graph = local.graph;
    makeOwn(local.own, context_.shardings.mesh(stage, rows), graph);
    made.collectives = local.collectives;
  }
  if (made.phase == Phase::kUpdate) countUpdates(stage, graph);
  return add(std::move(made), std::move(graph));
}

void RankSubgraphs::makeOwn(const std::vector<DeviceConstant>& constants, const LogicalMesh& mesh,
                            Graph& graph) {
  for (const DeviceConstant& constant : constants) {
    const std::string key = fmt::format("{} of {} rows: {}", printMesh(mesh), mesh.rows, constant.key);
    const auto of = [&layout = context_.layout, of_device = constant.of](RankId rank) {
      return of_device(layout.place(rank).position);
    };
    graph.initializers.at(constant.value) = questions_.askConstant(key, of);
    graph.value(constant.value).metadata.emplace_back(kOwnConstantMark, key);
  }
}

void RankSubgraphs::countUpdates(StageId stage, Graph& update) const {
  const int averaged = context_.versions.averaged(stage);
  const std::string& name =
      training_.step.valid() ? training_.graph.value(training_.step).name : std::string();
  const auto step = std::find_if(update.inputs.begin(), update.inputs.end(),
                                 [&](ValueId id) { return update.value(id).name == name; });
  if (averaged == 1 || step == update.inputs.end()) return;
  GraphBuilder nodes(update);
  const ValueId minibatches = *step;
  const ValueId updates = nodes.addValue(name + "_updates", DataType::kInt64, {});
  const ValueId count = nodes.addConstant("minibatches", makeScalar(DataType::kInt64, averaged));
  for (Node& node : update.nodes) std::replace(node.inputs.begin(), node.inputs.end(), minibatches, updates);
  nodes.addNode("", "Div", {minibatches, count}, {updates});
  std::rotate(update.nodes.begin(), update.nodes.end() - 1, update.nodes.end());
}

SubgraphId RankSubgraphs::add(Subgraph description, Graph graph) {
  descriptions_.push_back(std::move(description));
  graphs_.push_back(std::move(graph));
  return SubgraphId(descriptions_.size() - 1);
}

}  // namespace pipeshard
