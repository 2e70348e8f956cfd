// Which plan a directory holds, to notice when another one is put in its place while a command uses it.
//
//   const std::string mark = planMark("gpt2.plan");      // before anything of it is read
//   ...                                                  // a job; it is read once more
//   requireSamePlan("gpt2.plan", mark, "saved/step-000100");
#pragma once

#include <string>

namespace pipeshard {

// Of plan.json, ranks.json, kinds/ and the record of programs, as they are now, also of those that are not
// there: 16 hexadecimal digits. What commands add to a plan (results of `validate`, reports, evaluation/,
// fewer/) does not change it. Errors as readTextFile.
std::string planMark(const std::string& plan_directory);

// Error(kVersionMismatch) where the plan there is not that of `mark` any more ("": it is not compared).
// `checkpoint`: the last one that the job has made, which the message names; "": none.
void requireSamePlan(const std::string& plan_directory, const std::string& mark,
                     const std::string& checkpoint);

}  // namespace pipeshard
