// Timelines as text, a row per rank:
//
//   d0 0123......0b41b52b63b74b.5b.6b.7b
//   d1 .012....0b31b42b53b64b75b.6b.7b..
//
// A digit: the pass of that microbatch (its last digit) begins. Letters: it goes on (f forward, b backward, i
// and w its halves, r recomputation, u update). A dot: idle.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace pipeshard {

struct GanttBar {
  char kind = 'f';      // as above; '-' for anything else, which has no digit
  int microbatch = -1;  // -1: none
  bool marked = false;  // underlined where there are colours: a later chunk of the rank
  int64_t start = 0;
  int64_t end = 0;
};

struct GanttStyle {
  int width = 100;  // columns of a row, at most
  bool colours = false;
};

// Bars of a row are in order and do not overlap. A column is the largest unit in which all bars begin and end
// where that fits; else the makespan is shared out over the columns, and each shows what fills most of it.
std::string ganttText(const std::vector<std::vector<GanttBar>>& rows, int64_t makespan,
                      const GanttStyle& style);

// How many ticks a column of that picture is.
int64_t ganttColumn(const std::vector<std::vector<GanttBar>>& rows, int64_t makespan,
                    const GanttStyle& style);

// Explains the kinds that occur.
std::string ganttLegend(const std::vector<std::vector<GanttBar>>& rows);

}  // namespace pipeshard
