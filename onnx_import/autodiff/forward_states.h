// Running statistics: what the forward passes of a training graph keep.
#pragma once

#include <vector>

#include "ir/graph/training_graph.h"

namespace pipeshard {

// The running means and variances of the batch normalisations in training mode among nodes first_forward.. of
// the graph: where input 3 or 4 is an initializer of the model, output 1 or 2 becomes its next value. ONNX
// defines what that is:
//   updated = state * momentum + statistic of the microbatch * (1 - momentum)
// where momentum is the node's attribute (default 0.9) and the variance is the microbatch's *population*
// variance. (PyTorch's momentum is 1 minus this one, and its running variance follows the sample variance,
// n/(n-1) times as much.)
//
// An output that the file leaves unnamed is added, named "<state>.updated". An initializer that stands for a
// constant of the file (no statistics were kept) is no state. A module that is applied several times, so that
// several nodes read the same scale, bias, mean and variance, updates them in turn: each node is made to read
// what the one before gave. An exporter may have written such a chain itself.
//
// The result is in the order of the first readers, mean before variance; exactly one node of the graph reads
// each `value`. Errors: kBadModel naming the state and its readers, if anything else of the graph reads it
// (two normalisations with other scales that share a mean, a prologue, a cast for a second call): nobody
// could say when it should read which value. Also where a normalisation reads an updated one that another
// has updated since: nobody would take what it gives.
std::vector<ForwardState> findForwardStates(Graph& graph, size_t first_forward);

// Batch normalisations in training mode that read a running statistic through nodes that give the same
// numbers in the same shape (the exporter writes an Identity for the second call of a module) read the
// statistic itself. The nodes between stay, for removeDeadCode. To be called before findForwardStates on a
// prepared graph.
void readStatisticsAtOnce(Graph& graph);

}  // namespace pipeshard
