// program.json: for every struct of ir/program/program.h a function each way, side by side, so that both have
// the same keys. Buffers, subgraphs and groups are referred to by position; therefore groups are read before
// subgraphs, and both before instructions, and every position is checked against what has been read. Fields
// that have their default are not written. In-memory constants are base64, up to 64 KiB each. Lists that grow
// with the microbatches may hold loops (ir/program/list_json.h); of a kind they do.
#include "ir/program/program_json.h"

#include <limits>

#include <nlohmann/json.hpp>

#include "ir/base/error.h"
#include "ir/base/ids_format.h"
#include "ir/base/json_reader.h"
#include "ir/base/tensor_box.h"
#include "ir/program/constant_json.h"
#include "ir/program/list_json.h"
#include "ir/program/name_index.h"

namespace pipeshard {
namespace {

// Names of an enumeration, in the order of its values.
template <typename Enum, size_t kCount>
std::vector<std::string> enumNames(std::string_view (*name)(Enum)) {
  std::vector<std::string> names;
  for (size_t i = 0; i < kCount; ++i) names.emplace_back(name(static_cast<Enum>(i)));
  return names;
}

template <typename Enum>
Enum enumFromJson(const JsonReader& json, const std::vector<std::string>& names) {
  const std::string text = json.string(names);
  return static_cast<Enum>(std::find(names.begin(), names.end(), text) - names.begin());
}

const std::vector<std::string>& bufferKinds() {
  static const auto names = enumNames<BufferKind, 10>(bufferKindName);
  return names;
}
const std::vector<std::string>& instructionKinds() {
  static const auto names = enumNames<InstructionKind, 11>(instructionKindName);
  return names;
}
const std::vector<std::string>& phases() {
  static const auto names = enumNames<Phase, kPhaseCount>(phaseName);
  return names;
}
const std::vector<std::string>& resultKinds() {
  static const std::vector<std::string> names = {"loss",          "gradient", "parameter", "optimizer_state",
                                                 "forward_state", "output",   "measure"};
  return names;
}

Json idsToJson(const std::vector<BufferId>& ids) {
  Json json = Json::array();
  for (BufferId id : ids) json.push_back(id.index());
  return json;
}

std::vector<BufferId> idsFromJson(const JsonReader& json, size_t count) {
  std::vector<BufferId> ids;
  for (int64_t id : json.integers(0, static_cast<int64_t>(count) - 1))
    ids.emplace_back(static_cast<size_t>(id));
  return ids;
}

const std::vector<std::string>& randomKinds() {
  static const std::vector<std::string> names = {"uniform", "normal", "true"};
  return names;
}

Json randomToJson(const RandomNumbers& drawn) {
  Json json = {{"numbers", randomKinds()[static_cast<size_t>(drawn.kind)]},
               {"probability", drawn.probability}};
  if (drawn.scale != 1) json["scale"] = drawn.scale;
  if (drawn.shift != 0) json["shift"] = drawn.shift;
  return json;
}

RandomNumbers randomFromJson(const JsonReader& json) {
  json.expectObject({"numbers", "probability"}, {"scale", "shift"});
  constexpr double kMost = std::numeric_limits<double>::max();
  RandomNumbers drawn{enumFromJson<RandomNumbers::Kind>(json.at("numbers"), randomKinds()),
                      json.at("probability").number(0, 1)};
  if (json.has("scale")) drawn.scale = json.at("scale").number(0, kMost);
  if (json.has("shift")) drawn.shift = json.at("shift").number(-kMost, kMost);
  return drawn;
}

Json sourceToJson(const Buffer& buffer) {
  if (const auto* weight = std::get_if<WeightReference>(&*buffer.source)) {
    if (weight->drawn) return {{"drawn", randomToJson(*weight->drawn)}};
    Json json = {{"file", weight->location}, {"offset", weight->offset}, {"length", weight->length}};
    if (weight->transposed) json["transposed"] = true;
    if (buffer.own_copy) json["own_copy"] = true;
    return json;
  }
  const Constant& constant = std::get<Constant>(*buffer.source);
  if (constant.bytes.size() > kMostInlineBytes) {
    fail(ErrorCode::kConfiguration,
         "buffer \"{}\" starts from a tensor of {} bytes that is not in a file; at most {} bytes fit into "
         "program.json",
         buffer.name, constant.bytes.size(), kMostInlineBytes);
  }
  return {{"shape", constant.shape}, {"base64", toBase64(constant.bytes)}};
}

// Sets own_copy of the buffer.
Initializer sourceFromJson(const JsonReader& json, Buffer& buffer) {
  buffer.own_copy = json.has("own_copy") && json.at("own_copy").boolean();
  const Shape whole = buffer.own_copy ? buffer.shape : wholeShape(buffer);
  const int64_t expected = byteCount(buffer.source_type, whole);
  if (json.has("file")) {
    json.expectObject({"file", "offset", "length"}, {"transposed", "own_copy"});
    return WeightReference{json.at("file").string(),
                           static_cast<uint64_t>(json.at("offset").integer(0, INT64_MAX)),
                           static_cast<uint64_t>(json.at("length").integer(expected, expected)),
                           {},
                           json.has("transposed") && json.at("transposed").boolean()};
  }
  if (json.has("drawn")) {
    json.expectObject({"drawn"});
    return WeightReference{"", 0, static_cast<uint64_t>(expected), randomFromJson(json.at("drawn"))};
  }
  json.expectObject({"shape", "base64"});
  Constant constant{buffer.source_type, json.at("shape").shape(), fromBase64(json.at("base64"))};
  if (constant.shape != whole)
    json.at("shape").failExpected("the shape of the buffer's tensor, " + shapeToString(whole));
  if (std::ssize(constant.bytes) != expected)
    json.at("base64").failExpected(fmt::format("{} bytes", expected));
  return constant;
}

Json bufferToJson(const Buffer& buffer) {
  Json json = {{"name", buffer.name},
               {"kind", bufferKindName(buffer.kind)},
               {"type", dataTypeName(buffer.data_type)},
               {"shape", buffer.shape}};
  if (!buffer.value.empty()) json["value"] = buffer.value;
  if (buffer.part) json["part"] = {{"whole", buffer.part->whole}, {"start", buffer.part->start}};
  if (buffer.update > 0) json["update"] = buffer.update;
  if (buffer.source) {
    json["source_type"] = dataTypeName(buffer.source_type);
    json["source"] = sourceToJson(buffer);
  }
  return json;
}

BufferPart partFromJson(const JsonReader& json, const Buffer& buffer) {
  json.expectObject({"whole", "start"});
  BufferPart part{json.at("whole").shape(), json.at("start").integers(0, INT64_MAX)};
  const std::string fault = boxFault(part.whole, {part.start, buffer.shape});
  if (!fault.empty()) json.failExpected(fmt::format("a box of a tensor, but {}", fault));
  return part;
}

Buffer bufferFromJson(const JsonReader& json) {
  json.expectObject({"name", "kind", "type", "shape"}, {"value", "part", "update", "source_type", "source"});
  Buffer buffer;
  buffer.name = json.at("name").string();
  buffer.kind = enumFromJson<BufferKind>(json.at("kind"), bufferKinds());
  buffer.data_type = json.at("type").dataType();
  buffer.shape = json.at("shape").shape();
  try {
    byteCount(buffer.data_type, buffer.shape);
  } catch (const Error& error) {
    json.at("shape").failExpected(fmt::format("the shape of a tensor that has a size ({})", error.message()));
  }
  if (json.has("value")) buffer.value = json.at("value").string();
  if (json.has("part")) buffer.part = partFromJson(json.at("part"), buffer);
  if (json.has("update")) buffer.update = json.at("update").integer(0, INT32_MAX);
  if (json.has("source") != json.has("source_type"))
    json.failExpected("\"source\" and \"source_type\" together");
  if (json.has("source")) {
    buffer.source_type = json.at("source_type").dataType();
    buffer.source = sourceFromJson(json.at("source"), buffer);
  }
  return buffer;
}

Json subgraphToJson(const Subgraph& subgraph) {
  Json json = {{"name", subgraph.name},
               {"file", subgraph.file},
               {"phase", phaseName(subgraph.phase)},
               {"inputs", subgraph.inputs},
               {"outputs", subgraph.outputs}};
  if (!subgraph.collectives.empty()) json["collectives"] = positionsOf(subgraph.collectives);
  if (subgraph.recomputation) json["recomputation"] = true;
  return json;
}

int lastIndex(size_t count) { return static_cast<int>(count) - 1; }

Subgraph subgraphFromJson(const JsonReader& json, size_t group_count) {
  json.expectObject({"name", "file", "phase", "inputs", "outputs"}, {"collectives", "recomputation"});
  Subgraph subgraph{json.at("name").string(),
                    json.at("file").string(),
                    enumFromJson<Phase>(json.at("phase"), phases()),
                    json.at("inputs").strings(),
                    json.at("outputs").strings(),
                    {}};
  if (json.has("collectives"))
    subgraph.collectives = idsAt<GroupId>(json.at("collectives").integers(0, lastIndex(group_count)));
  if (json.has("recomputation")) subgraph.recomputation = json.at("recomputation").boolean();
  return subgraph;
}

Json instructionToJson(const Instruction& instruction) {
  Json json = {{"kind", instructionKindName(instruction.kind)}};
  if (instruction.subgraph.valid()) json["subgraph"] = instruction.subgraph.index();
  if (instruction.stage.valid()) json["stage"] = instruction.stage.index();
  if (instruction.microbatch >= 0) json["microbatch"] = instruction.microbatch;
  if (instruction.peer.valid()) json["peer"] = instruction.peer.index();
  if (instruction.group.valid()) json["group"] = instruction.group.index();
  if (instruction.overwrite) json["overwrite"] = true;
  if (instruction.axis >= 0) json["axis"] = instruction.axis;
  if (instruction.offset > 0) json["offset"] = instruction.offset;
  if (instruction.background) json["background"] = true;
  if (!instruction.inputs.empty()) json["inputs"] = idsToJson(instruction.inputs);
  if (!instruction.outputs.empty()) json["outputs"] = idsToJson(instruction.outputs);
  return json;
}

Instruction instructionFromJson(const JsonReader& json, const Program& program) {
  json.expectObject({"kind"}, {"subgraph", "stage", "microbatch", "peer", "group", "overwrite", "axis",
                               "offset", "background", "inputs", "outputs"});
  Instruction instruction;
  instruction.kind = enumFromJson<InstructionKind>(json.at("kind"), instructionKinds());
  if (json.has("subgraph")) {
    instruction.subgraph = SubgraphId(json.at("subgraph").integer(0, lastIndex(program.subgraphs.size())));
  }
  if (json.has("stage")) instruction.stage = StageId(json.at("stage").integer(0, INT32_MAX));
  if (json.has("microbatch"))
    instruction.microbatch = json.at("microbatch").integer(0, program.microbatches - 1);
  if (json.has("peer")) instruction.peer = RankId(json.at("peer").integer(0, program.world_size - 1));
  if (json.has("group"))
    instruction.group = GroupId(json.at("group").integer(0, lastIndex(program.groups.size())));
  if (json.has("overwrite")) instruction.overwrite = json.at("overwrite").boolean();
  if (json.has("axis")) instruction.axis = json.at("axis").integer(0, INT32_MAX);
  if (json.has("offset")) instruction.offset = json.at("offset").integer(0, INT64_MAX);
  if (json.has("background")) instruction.background = json.at("background").boolean();
  if (json.has("inputs")) instruction.inputs = idsFromJson(json.at("inputs"), program.buffers.size());
  if (json.has("outputs")) instruction.outputs = idsFromJson(json.at("outputs"), program.buffers.size());
  return instruction;
}

Json resultToJson(const Result& result) {
  Json json = {{"kind", resultKinds()[static_cast<size_t>(result.kind)]},
               {"name", result.name},
               {"buffer", result.buffer.index()}};
  if (!result.state.empty()) json["state"] = result.state;
  if (result.update >= 0) json["update"] = result.update;
  if (result.microbatch >= 0) json["microbatch"] = result.microbatch;
  if (result.axis >= 0) json["axis"] = result.axis;
  if (result.transposed) json["transposed"] = true;
  if (result.divided_axis >= 0) json["divided_axis"] = result.divided_axis;
  return json;
}

Result resultFromJson(const JsonReader& json, size_t buffer_count) {
  json.expectObject({"kind", "name", "buffer"},
                    {"state", "update", "microbatch", "axis", "transposed", "divided_axis"});
  Result result;
  result.kind = enumFromJson<Result::Kind>(json.at("kind"), resultKinds());
  result.name = json.at("name").string();
  if (json.has("state")) result.state = json.at("state").string();
  result.buffer = BufferId(json.at("buffer").integer(0, lastIndex(buffer_count)));
  if (json.has("update")) result.update = json.at("update").integer(0, INT32_MAX);
  if (json.has("microbatch")) result.microbatch = json.at("microbatch").integer(0, INT32_MAX);
  if (json.has("axis")) result.axis = json.at("axis").integer(0, INT32_MAX);
  result.transposed = json.has("transposed") && json.at("transposed").boolean();
  if (json.has("divided_axis")) result.divided_axis = json.at("divided_axis").integer(0, INT32_MAX);
  return result;
}

Json inputToJson(const ProgramInput& input) {
  Json json = {{"name", input.name},   {"type", dataTypeName(input.data_type)},
               {"shape", input.shape}, {"axis", input.axis},
               {"low", input.low},     {"high", input.high}};
  if (input.drawn) json["drawn"] = randomToJson(*input.drawn);
  if (!input.allowed) return json;
  json["allowed"] = {
      {"low", input.allowed->low}, {"high", input.allowed->high}, {"exact", input.allowed->exact}};
  if (input.allowed->ignored) json["allowed"]["ignored"] = *input.allowed->ignored;
  return json;
}

ProgramInput inputFromJson(const JsonReader& json) {
  json.expectObject({"name", "type", "shape", "axis", "low", "high"}, {"allowed", "drawn"});
  ProgramInput input;
  input.name = json.at("name").string();
  input.data_type = json.at("type").dataType();
  input.shape = json.at("shape").shape();
  input.axis = json.at("axis").integer(-1, lastIndex(input.shape.size()));
  input.low = json.at("low").integer(INT64_MIN, INT64_MAX);
  input.high = json.at("high").integer(input.low, INT64_MAX);
  if (json.has("drawn")) input.drawn = randomFromJson(json.at("drawn"));
  if (!json.has("allowed")) return input;
  const JsonReader allowed = json.at("allowed");
  allowed.expectObject({"low", "high", "exact"}, {"ignored"});
  input.allowed.emplace().low = allowed.at("low").integer(INT64_MIN, INT64_MAX);
  input.allowed->high = allowed.at("high").integer(input.allowed->low, INT64_MAX);
  input.allowed->exact = allowed.at("exact").boolean();
  if (allowed.has("ignored")) input.allowed->ignored = allowed.at("ignored").integer(INT64_MIN, INT64_MAX);
  return input;
}

// A list that may hold loops; without a budget it holds none.
template <typename List, typename ToJson>
void addItems(std::string_view key, const List& items, const ToJson& to_json, LoopBudget* loops,
              std::string& text) {
  if (loops != nullptr) return addLoopedList(key, items, to_json, *loops, text);
  addList(key, items, to_json, text);
}

// Without the end of the document.
std::string programText(const Program& program, LoopBudget* loops) {
  std::string text = fmt::format(
      "{{\n  \"version\": {},\n  \"rank\": {},\n  \"world_size\": {},\n  \"microbatches\": {},\n  "
      "\"updates_per_step\": {}",
      loops != nullptr ? kKindVersion : kProgramVersion, program.rank, program.world_size,
      program.microbatches, program.updates_per_step);
  addList("inputs", program.inputs, inputToJson, text);
  addList(
      "groups", program.groups, [](const std::vector<RankId>& group) { return Json(positionsOf(group)); },
      text);
  addList("subgraphs", program.subgraphs, subgraphToJson, text);
  addItems("buffers", program.buffers, bufferToJson, loops, text);
  addItems("instructions", program.instructions, instructionToJson, loops, text);
  addItems("results", program.results, resultToJson, loops, text);
  if (program.guard.valid()) text += fmt::format(",\n  \"guard\": {}", program.guard.index());
  if (program.loss_scale.valid()) text += fmt::format(",\n  \"loss_scale\": {}", program.loss_scale.index());
  return text;
}

// Into a program that has all that the items refer to. `loops` null: none are allowed.
void itemsFrom(const JsonReader& json, LoopBudget* loops, Program& program) {
  ListReader buffers(program, loops, bufferFromJson, bufferToJson);
  const std::vector<JsonReader> items = buffers.readInto(json.at("buffers"), program.buffers);
  NameIndex names(program.buffers.size());
  const LoopedList<Buffer>::Reader known(program.buffers);
  const auto name_of = [&](uint32_t position) { return std::string_view(known[position].name); };
  size_t position = 0;
  for (const Buffer& buffer : std::as_const(program.buffers)) {
    if (!names.add(buffer.name, position, name_of))
      items[program.buffers.storedAt(position)].at("name").failExpected("a name that no earlier buffer has");
    ++position;
  }
  const auto instruction = [&](const JsonReader& item) { return instructionFromJson(item, program); };
  ListReader(program, loops, instruction, instructionToJson)
      .readInto(json.at("instructions"), program.instructions);
  const auto result = [&](const JsonReader& item) { return resultFromJson(item, program.buffers.size()); };
  ListReader(program, loops, result, resultToJson)
      .readEach(json.at("results"),
                [&](const JsonReader&, Result&& read) { program.results.push_back(std::move(read)); });
}

Program programFrom(const JsonReader& json, LoopBudget* loops) {
  Program program;
  program.world_size = json.at("world_size").integer(1, INT32_MAX);
  program.rank = RankId(json.at("rank").integer(0, program.world_size - 1));
  program.microbatches = json.at("microbatches").integer(1, INT32_MAX);
  program.updates_per_step = json.at("updates_per_step").integer(1, program.microbatches);
  for (const JsonReader& input : json.at("inputs").elements()) program.inputs.push_back(inputFromJson(input));
  for (const JsonReader& group : json.at("groups").elements())
    program.groups.push_back(idsAt<RankId>(group.integers(0, program.world_size - 1)));
  for (const JsonReader& subgraph : json.at("subgraphs").elements()) {
    program.subgraphs.push_back(subgraphFromJson(subgraph, program.groups.size()));
  }
  itemsFrom(json, loops, program);
  if (json.has("guard"))
    program.guard = BufferId(json.at("guard").integer(0, lastIndex(program.buffers.size())));
  if (json.has("loss_scale"))
    program.loss_scale = BufferId(json.at("loss_scale").integer(0, lastIndex(program.buffers.size())));
  return program;
}

// Calls `read` with the document, which has the program's keys and these, and may have `optional`.
template <typename Read>
auto readProgram(std::string_view text, int version, const std::vector<std::string_view>& more,
                 std::vector<std::string_view> optional, const Read& read) {
  const Json document = parseJson(text, "program.json");
  checkJsonVersion(document, "program.json", version);
  const JsonReader json(document, "program.json");
  std::vector<std::string_view> keys = {"version",          "rank",         "world_size", "microbatches",
                                        "updates_per_step", "inputs",       "groups",     "subgraphs",
                                        "buffers",          "instructions", "results"};
  keys.insert(keys.end(), more.begin(), more.end());
  optional.push_back("guard");
  optional.push_back("loss_scale");
  json.expectObject(keys, optional);
  return read(json);
}

Json numbersToJson(const std::vector<int64_t>& numbers) { return numbers; }
std::vector<int64_t> startFromJson(const JsonReader& json) { return json.integers(0, INT32_MAX); }

// "starts": [[buffer, entry], ...]; a third number, 1, where the buffer's name ends with its box.
void startsFromJson(const JsonReader& json, LoopBudget& loops, ProgramKind& kind) {
  const LoopedList<Buffer>& buffers = kind.program.buffers;
  const auto take = [&](const JsonReader& item, const std::vector<int64_t>& numbers) {
    const bool known = (numbers.size() == 2 || numbers.size() == 3) && numbers[0] < std::ssize(buffers) &&
                       buffers.form(numbers[0]).part.has_value();
    if (!known) item.failExpected("[a buffer that is a part, an entry of the ranks' starts]");
    kind.start_slots[numbers[0]] = static_cast<int>(numbers[1]);
    if (numbers.size() == 2) return;
    const Buffer buffer = buffers.copyAt(numbers[0]);
    if (numbers[2] != 1 || !buffer.name.ends_with(boxText(buffer.part->start, buffer.shape)))
      item.failExpected("two numbers, or 1 behind them where the buffer's name ends with its box");
    kind.boxed[numbers[0]] = true;
  };
  ListReader(kind.program, &loops, startFromJson, numbersToJson).readEach(json, take);
}

// What ProgramKind says of a buffer, it says of all iterations of a loop.
void unrollUnevenStarts(ProgramKind& kind) {
  LoopedList<Buffer>& buffers = kind.program.buffers;
  for (const LoopedList<Buffer>::Loop& loop : buffers.loops()) {
    for (size_t i = loop.first + loop.period; i < loop.end(); ++i) {
      const size_t before = i - loop.period;
      if (kind.start_slots[i] == kind.start_slots[before] && kind.boxed[i] == kind.boxed[before]) continue;
      buffers.unrolled();
      return;
    }
  }
}

// "constants": those of subgraphs that are the rank's own.
OwnConstant ownConstantFrom(const JsonReader& json, const Program& program) {
  json.expectObject({"subgraph", "value", "entry"});
  const int64_t last = std::ssize(program.subgraphs) - 1;
  return {SubgraphId(json.at("subgraph").integer(0, last)), json.at("value").string(),
          static_cast<size_t>(json.at("entry").integer(0, INT32_MAX))};
}

}  // namespace

std::string programToJson(const Program& program) { return programText(program, nullptr) + "\n}\n"; }

Program programFromJson(std::string_view text) {
  return readProgram(text, kProgramVersion, {}, {},
                     [](const JsonReader& json) { return programFrom(json, nullptr); });
}

std::string kindToJson(const ProgramKind& kind, LoopBudget loops) {
  std::string text = programText(kind.program, &loops);
  std::vector<std::vector<int64_t>> starts;
  for (size_t b = 0; b < kind.start_slots.size(); ++b) {
    if (kind.start_slots[b] < 0) continue;
    starts.push_back({static_cast<int64_t>(b), kind.start_slots[b]});
    if (kind.boxed[b]) starts.back().push_back(1);
  }
  addLoopedList("starts", starts, numbersToJson, loops, text);
  const auto constant = [](const OwnConstant& own) {
    return Json{{"subgraph", own.subgraph.index()}, {"value", own.value}, {"entry", own.slot}};
  };
  if (!kind.own_constants.empty()) addList("constants", kind.own_constants, constant, text);
  return text + "\n}\n";
}

ProgramKind kindFromJson(std::string_view text, LoopBudget loops) {
  return readProgram(text, kKindVersion, {"starts"}, {"constants"}, [&loops](const JsonReader& json) {
    ProgramKind kind{programFrom(json, &loops), {}, {}};
    kind.start_slots.resize(kind.program.buffers.size(), -1);
    kind.boxed.resize(kind.program.buffers.size());
    startsFromJson(json.at("starts"), loops, kind);
    unrollUnevenStarts(kind);
    if (json.has("constants")) {
      for (const JsonReader& item : json.at("constants").elements())
        kind.own_constants.push_back(ownConstantFrom(item, kind.program));
    }
    return kind;
  });
}

}  // namespace pipeshard
