// Whether cuDNN does what it could do here: for sources without NVIDIA's headers, and .cu files.
#pragma once

#include <string>

namespace pipeshard::kernels {

// A kernel that cuDNN has a function for was made: with it, or without.
void noteCudnn(bool used);
// Of all that were noted: "cuDNN 9.19.0", "cuDNN 9.19.0 for 20 of 21 convolutions, pools and batch
// normalisations", "no cuDNN (why)"; "" where there was none.
std::string cudnnUse();
// Of that what tells two machines apart: "cuDNN 9.19.0", "no cuDNN"; "" where there was none.
std::string cudnnVersion();

// What cuDNN has prepared, which may be nothing.
template <typename Function>
Function noted(Function function) {
  noteCudnn(static_cast<bool>(function));
  return function;
}

}  // namespace pipeshard::kernels
