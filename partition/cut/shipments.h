// What of a value travels between the devices of two stages.
//
// A device computes its rows of a microbatch. What it holds of a value is to the whole microbatch what a part
// is to the batch along the time axis (TimeKind): its rows along an axis (split), a part of a sum, or all of
// it (invariant). Between stages of equal meshes each device sends to its counterpart. Else: rows go to
// whoever computes them, each to one receiver per place along the model axis; parts of a sum are shared out,
// so that the receivers' parts have the same total (everything downstream of a sum is linear in it); an
// invariant value comes from one sender. Where replicas take microbatches in turn, all of a value goes from
// the one that has the microbatch to the one that takes it. Internal to partition/.
#pragma once

#include <vector>

#include "partition/cut/layout.h"
#include "sharding/batch/time_axis.h"
#include "sharding/batch/training_family.h"

namespace pipeshard {

// By value index of the family's base, for values that forward and backward nodes make. Found by comparing
// the base with the member of `rows` rows: a value is split along the axis whose size differs; else it is a
// sum if it depends on something split, or on a constant that differs and is no size (c rows/batch).
std::vector<TimeKind> batchKinds(const TrainingFamily& family, int64_t rows);

struct Shipment {
  RankId sender;
  RankId receiver;
  Rows rows;  // of the whole batch: what travels of a split value; else the sender's cell
};

// Everything that travels of one value of microbatch `k`. For each receiver in ascending order of rows; the
// order is the same however often it is asked.
std::vector<Shipment> shipments(const Layout& layout, TimeKind::Kind kind, int64_t k, StageId from_stage,
                                StageId to_stage);

}  // namespace pipeshard
