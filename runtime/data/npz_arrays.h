// numpy's .npz archives as data, in bounded memory. Arrays that the archive stores as they are (numpy.savez)
// are read in place; others (numpy.savez_compressed, Fortran order) are unpacked once per host
// (unpacked_file.h).
#pragma once

#include <memory>
#include <string>

#include "runtime/data/stored_array.h"

namespace pipeshard {

// Errors as NpzFile (runtime/files/npz.h); kDiskFull (no space to unpack). What is smaller than 64 MiB is
// compared with the archive's checksum when it is opened, and so is all that is unpacked.
// `unpacked_descriptor`: as DataDescription has it.
std::unique_ptr<ArrayStore> openNpzArrays(const std::string& path, int unpacked_descriptor);

}  // namespace pipeshard
