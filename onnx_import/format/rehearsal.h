// Inference on models of strangers. ONNX's own inference functions may crash on hostile attributes (a stride
// of 0 divides by it), and nothing but a process of its own holds that: the walk over a graph is done first
// in a child with limits, and here only if the child came through. The same walk on the same memory ends the
// same way. It takes as long as the inference itself, so one's own models are rehearsed only where a number
// in them is such as no exporter writes.
//
//   const Rehearsals rehearsals(rehearsalOf(path));   // for as long as it lives, inference may rehearse
#pragma once

#include <functional>
#include <string>

#include "ir/graph/graph.h"

namespace pipeshard {

// The file belongs to another user, or lies in a folder that others may write. False where that cannot be
// asked: whoever reads the file says why.
bool isOfStrangers(const std::string& path);

enum class Rehearsing { kNever, kOfOddNumbers, kAlways };

// kAlways for models of strangers.
Rehearsing rehearsalOf(const std::string& path);

// Whether an integer attribute of a node, however deep, is beyond what operators are given: 0 where it is not
// an axis, a padding or a switch, negative where it is not counted from behind, or huge.
bool hasOddNumbers(const Graph& graph);

// Process-wide; one thread at a time makes them. Without any: kNever.
class Rehearsals {
 public:
  explicit Rehearsals(Rehearsing when);
  ~Rehearsals();
  Rehearsals(const Rehearsals&) = delete;
  Rehearsals& operator=(const Rehearsals&) = delete;

  static bool areWantedFor(const Graph& graph);

 private:
  Rehearsing before_;
};

// Runs `work` in a child process: what it does is lost, but for its end. It says before each step what it
// looks at. Error(kBadModel) naming that, when the child is ended by a signal, by a library that exits, after
// a minute, or for want of 4 GiB more than this process has; what `work` throws is dropped.
// Error(kOutOfMemory) where no child can be made, or its end not be seen.
using RehearsalNote = std::function<void(const std::string&)>;
void rehearse(const std::function<void(const RehearsalNote&)>& work);

}  // namespace pipeshard
