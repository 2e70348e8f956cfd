#include "runtime/job/trace_merge.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <tuple>

#include <fmt/ranges.h>

#include "ir/base/error.h"
#include "ir/base/ids_format.h"
#include "ir/trace/trace_names.h"
#include "runtime/evaluation/rank_evaluation.h"
#include "runtime/execute/rank_image.h"
#include "runtime/execute/step_runner.h"

namespace pipeshard {
namespace {

int64_t bytesOf(const Program& program, BufferId id) {
  const Buffer& buffer = program.buffer(id);
  return byteCount(buffer.data_type, buffer.shape);
}

bool isMessage(const Instruction& instruction) {
  return instruction.kind == InstructionKind::kSend || instruction.kind == InstructionKind::kReceive;
}

// Of one program: which of the messages with its peer, in its direction, an instruction is; and how many
// there are in a step.
struct MessageNumbers {
  std::vector<int64_t> of_instruction;
  std::map<std::pair<InstructionKind, RankId>, int64_t> in_step;  // by direction and peer

  explicit MessageNumbers(const Program& program) : of_instruction(program.instructions.size(), -1) {
    size_t next = 0;
    for (const Instruction& instruction : program.instructions) {
      const size_t i = next++;
      if (isMessage(instruction)) of_instruction[i] = in_step[{instruction.kind, instruction.peer}]++;
    }
  }
};

using MessageKey = std::tuple<RankId, RankId, int64_t>;  // sender, receiver, number

// The collectives that meet: of a group, by one communicator of each rank, in a step; the first, the second.
struct MeetingKey {
  std::vector<RankId> members;
  bool background = false;
  int64_t step = 0, batch = 0, number = 0;
  friend auto operator<=>(const MeetingKey&, const MeetingKey&) = default;
};
using Meetings = std::map<MeetingKey, std::vector<size_t>>;  // which of the trace's events

std::string rankName(const Program& program) {
  std::set<StageId> stages;
  for (const Instruction& instruction : program.instructions) {
    if (instruction.stage.valid()) stages.insert(instruction.stage);
  }
  if (stages.empty()) return fmt::format("rank {}", program.rank);
  return fmt::format("rank {} (stage{} {})", program.rank, stages.size() == 1 ? "" : "s",
                     fmt::join(stages, ", "));
}

// What is there of every rank.
struct FirstRecords {
  int64_t step = 1;
  std::pair<int64_t, int64_t> batch{0, 1};  // of an evaluation: the step before it, and which one

  explicit FirstRecords(const std::vector<RankRecording>& recordings) {
    for (const RankRecording& recording : recordings) {
      const std::vector<TraceStepRecords>& steps = recording.records.steps;
      const auto trains = [](const TraceStepRecords& one) { return one.batch == 0; };
      if (const auto found = std::ranges::find_if(steps, trains); found != steps.end())
        step = std::max(step, found->step);
      if (const auto found = std::ranges::find_if_not(steps, trains); found != steps.end())
        batch = std::max(batch, std::pair(found->step, found->batch));
    }
  }
  // Of evaluations, none before that which the first step follows.
  bool has(const TraceStepRecords& one) const {
    if (one.batch == 0) return one.step >= step;
    return one.step >= step - 1 && std::pair(one.step, one.batch) >= batch;
  }
};

// One rank's events. Times are on the trace's clock, not yet from its beginning.
class RankEvents {
 public:
  RankEvents(const RankRecording& recording, const FirstRecords& first, int64_t end, Trace& trace,
             Meetings& meetings)
      : recording_(recording), end_(end), trace_(trace), meetings_(meetings) {
    for (const Program& program : recording.programs) numbers_.emplace_back(program);
    for (const TraceStepRecords& step : recording.records.steps) {
      if (!first.has(step)) continue;
      if (step.program >= recording.programs.size()) failForeign("a step of a program that is not there");
      met_.clear();
      for (size_t lane = 0; lane < kTraceLanes; ++lane) addLane(step, lane);
      addMemory(step);
      for (const auto& [direction, count] : numbers_[step.program].in_step) sent_before_[direction] += count;
    }
  }

 private:
  [[noreturn]] void failForeign(const std::string& what) const {
    fail(ErrorCode::kConfiguration, "the recording of rank {} is of another plan: {}",
         recording_.records.rank, what);
  }
  int64_t time(int64_t theirs) const { return recording_.clock.toOwn(theirs); }

  void addLane(const TraceStepRecords& step, size_t lane) {
    const std::vector<TraceRecord>& records = step.lanes[lane];
    for (size_t i = 0; i < records.size();) {
      size_t next = i + 1;
      while (next < records.size() && records[next].part > 0) ++next;
      add(step, lane, std::span(records).subspan(i, next - i));
      i = next;
    }
  }

  // An instruction, and the collectives inside it.
  void add(const TraceStepRecords& step, size_t lane, std::span<const TraceRecord> records) {
    const Program& program = recording_.programs[step.program];
    if (records[0].instruction >= program.instructions.size())
      failForeign("an instruction beyond the program's end");
    const Instruction instruction = program.instructions.copyAt(records[0].instruction);
    TraceEvent event = describe(program, step, records[0]);
    event.background = lane != static_cast<size_t>(TraceLane::kForeground);
    const TraceEvent whole = event;
    int64_t from = whole.start_ns;
    for (const TraceRecord& part : records.subspan(1)) {
      TraceEvent collective = whole;
      setTimes(collective, part);
      collective.kind = TraceEventKind::kCollective;
      collective.work = TraceWork::kOther;
      addCompute(whole, from, collective.start_ns);
      from = collective.end_ns;
      const std::vector<GroupId>& groups = program.subgraphs.at(instruction.subgraph.index()).collectives;
      if (part.part > groups.size()) failForeign("a collective that its subgraph does not have");
      addMeeting(program, groups[part.part - 1], collective);
      trace_.events.push_back(std::move(collective));
    }
    if (records.size() > 1) return addCompute(whole, from, whole.end_ns);
    if (isMessage(instruction)) {
      event.peer = instruction.peer;
      event.message = numbers_[step.program].of_instruction[records[0].instruction] +
                      sent_before_[{instruction.kind, instruction.peer}];
    }
    if (event.kind == TraceEventKind::kCollective) addMeeting(program, instruction.group, event);
    trace_.events.push_back(std::move(event));
  }

  // Of the next event.
  void addMeeting(const Program& program, GroupId group, const TraceEvent& collective) {
    MeetingKey key{program.groups.at(group), collective.background, collective.step, collective.batch};
    key.number = met_[key]++;
    meetings_[std::move(key)].push_back(trace_.events.size());
  }

  void addCompute(const TraceEvent& whole, int64_t from, int64_t to) {
    if (to <= from) return;
    TraceEvent event = whole;
    event.start_ns = event.arrived_ns = from;
    event.end_ns = to;
    trace_.events.push_back(std::move(event));
  }

  void setTimes(TraceEvent& event, const TraceRecord& record) const {
    event.start_ns = time(record.start_ns);
    event.end_ns = std::max(event.start_ns, record.end_ns == 0 ? end_ : time(record.end_ns));
    event.arrived_ns =
        std::min(event.end_ns,
                 event.start_ns + (record.end_ns == 0 ? event.end_ns - event.start_ns : record.waited_ns));
  }

  TraceEvent describe(const Program& program, const TraceStepRecords& step, const TraceRecord& record) const {
    const Instruction instruction = program.instructions.copyAt(record.instruction);
    TraceEvent event = traceEventOf(program, instruction);
    event.rank = recording_.records.rank;
    event.step = step.step;
    event.batch = step.batch;
    if (event.batch > 0) event.name = "evaluate " + event.name;
    event.unfinished = record.end_ns == 0;
    if (event.unfinished) event.name += " (unfinished)";
    setTimes(event, record);
    switch (instruction.kind) {
      case InstructionKind::kRun:
      case InstructionKind::kUpdate: event.kind = TraceEventKind::kCompute; break;
      case InstructionKind::kSend:
        event.kind = TraceEventKind::kSend;
        event.bytes = bytesOf(program, instruction.inputs.at(0));
        break;
      case InstructionKind::kReceive:
      case InstructionKind::kAllReduce:
        event.kind = instruction.kind == InstructionKind::kReceive ? TraceEventKind::kReceive
                                                                   : TraceEventKind::kCollective;
        event.bytes = bytesOf(program, instruction.outputs.at(0));
        break;
      default: event.kind = TraceEventKind::kCopy;
    }
    const bool meets = event.kind == TraceEventKind::kReceive || event.kind == TraceEventKind::kCollective;
    if (!meets) event.arrived_ns = event.start_ns;
    return event;
  }

  void addMemory(const TraceStepRecords& step) {
    const std::vector<int64_t>& live = recording_.records.live_bytes.at(step.program);
    for (const TraceRecord& record : step.lanes[0]) {
      if (record.part > 0 || record.instruction >= live.size()) continue;
      const int64_t bytes = live[record.instruction];
      if (bytes == held_) continue;
      trace_.memory.push_back({recording_.records.rank, time(record.start_ns), bytes});
      held_ = bytes;
    }
  }

  const RankRecording& recording_;
  int64_t end_;
  Trace& trace_;
  std::vector<MessageNumbers> numbers_;
  std::map<std::pair<InstructionKind, RankId>, int64_t> sent_before_;  // in earlier steps
  int64_t held_ = -1;
  Meetings& meetings_;
  std::map<MeetingKey, int64_t> met_;  // so far in this step; keys are of number 0
};

// Nothing travels before all are there who take part; some devices cannot tell how long they waited for it.
void arriveAt(int64_t all_there, TraceEvent& event) {
  event.arrived_ns = std::clamp(std::max(event.arrived_ns, all_there), event.start_ns, event.end_ns);
}

// Sends last until they are received; receives of nobody's send lose their number.
void joinMessages(Trace& trace) {
  std::map<MessageKey, int64_t> received, sent;
  for (const TraceEvent& event : trace.events) {
    if (event.kind == TraceEventKind::kReceive)
      received[{event.peer, event.rank, event.message}] = event.end_ns;
    if (event.kind == TraceEventKind::kSend) sent[{event.rank, event.peer, event.message}] = event.start_ns;
  }
  for (TraceEvent& event : trace.events) {
    if (event.kind == TraceEventKind::kReceive) {
      const auto send = sent.find({event.peer, event.rank, event.message});
      if (send == sent.end())
        event.message = -1;
      else
        arriveAt(send->second, event);
    }
    if (event.kind != TraceEventKind::kSend) continue;
    const auto found = received.find({event.rank, event.peer, event.message});
    if (found != received.end()) event.end_ns = std::max(event.start_ns, found->second);
  }
}

// Where all members' are recorded.
void joinMeetings(const Meetings& meetings, Trace& trace) {
  for (const auto& [key, events] : meetings) {
    if (events.size() != key.members.size()) continue;
    int64_t all_there = std::numeric_limits<int64_t>::min();
    for (const size_t event : events) all_there = std::max(all_there, trace.events[event].start_ns);
    for (const size_t event : events) arriveAt(all_there, trace.events[event]);
  }
}

// The latest time that is known: when what had not ended is drawn to end.
int64_t latestTime(const std::vector<RankRecording>& recordings) {
  int64_t latest = std::numeric_limits<int64_t>::min();
  for (const RankRecording& recording : recordings) {
    for (const TraceStepRecords& step : recording.records.steps) {
      latest = std::max(latest, recording.clock.toOwn(std::max(step.start_ns, step.end_ns)));
      for (const auto& lane : step.lanes) {
        for (const TraceRecord& record : lane)
          latest = std::max(latest, recording.clock.toOwn(std::max(record.start_ns, record.end_ns)));
      }
    }
  }
  return latest;
}

void beginAtZero(Trace& trace, int64_t zero) {
  const auto shift = [&](int64_t& time) { time = std::max<int64_t>(0, time - zero); };
  for (TraceEvent& event : trace.events) {
    shift(event.start_ns);
    shift(event.end_ns);
    shift(event.arrived_ns);
  }
  for (TraceMemory& memory : trace.memory) shift(memory.time_ns);
  std::stable_sort(trace.events.begin(), trace.events.end(), [](const TraceEvent& a, const TraceEvent& b) {
    return std::tuple(a.rank, a.start_ns, a.end_ns) < std::tuple(b.rank, b.start_ns, b.end_ns);
  });
  std::stable_sort(trace.memory.begin(), trace.memory.end(), [](const TraceMemory& a, const TraceMemory& b) {
    return std::pair(a.rank, a.time_ns) < std::pair(b.rank, b.time_ns);
  });
}

}  // namespace

Trace mergeTrace(int ranks, const std::vector<RankRecording>& recordings) {
  Trace trace;
  Meetings meetings;
  trace.source = "measured";
  trace.ranks = ranks;
  for (RankId rank : idsBelow<RankId>(ranks)) trace.rank_names.push_back(fmt::format("rank {}", rank));
  const FirstRecords first(recordings);
  int64_t zero = std::numeric_limits<int64_t>::max();
  const int64_t latest = latestTime(recordings);
  for (const RankRecording& recording : recordings) {
    const RankId rank = recording.records.rank;
    if (rank >= RankId(ranks) || recording.programs.empty()) {
      fail(ErrorCode::kConfiguration, "a recording of rank {}, of {} ranks", rank, ranks);
    }
    trace.rank_names[rank] = rankName(recording.programs[0]);
    for (const TraceStepRecords& step : recording.records.steps) {
      if (first.has(step)) zero = std::min(zero, recording.clock.toOwn(step.start_ns));
    }
    RankEvents(recording, first, latest, trace, meetings);
  }
  joinMessages(trace);
  joinMeetings(meetings, trace);
  beginAtZero(trace, zero);
  verifyTrace(trace);
  return trace;
}

std::vector<ProgramFolder> foldersToTrace(const ProgramFolder& training, bool evaluates) {
  std::vector<ProgramFolder> folders = {training};
  if (evaluates) folders.emplace_back(training.folder() + "/" + kEvaluationFolder);
  for (ProgramFolder& folder : folders) folder.readAll();
  return folders;
}

Trace mergeTrace(std::vector<ProgramFolder>& folders, const IdVector<RankId, std::vector<std::byte>>& bytes,
                 const IdVector<RankId, ClockAlignment>& clocks) {
  PIPESHARD_CHECK(bytes.size() == clocks.size(), "recordings of {} ranks, clocks of {}", bytes.size(),
                  clocks.size());
  std::vector<RankRecording> recordings;
  for (RankId rank : bytes.ids()) {
    std::optional<TraceRecords> records = readTraceRecords(bytes[rank]);
    if (!records) continue;
    if (records->rank != rank) {
      fail(ErrorCode::kConfiguration, "the recording of rank {} says that it is of rank {}", rank,
           records->rank);
    }
    std::vector<Program> programs;
    for (ProgramFolder& folder : folders) {
      for (const StepSize size : folder.sizes()) programs.push_back(folder.program(rank, size));
    }
    recordings.push_back({std::move(*records), std::move(programs), clocks[rank]});
  }
  return mergeTrace(bytes.size(), recordings);
}

}  // namespace pipeshard
