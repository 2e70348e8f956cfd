#include "runtime/disks/disk_check.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "ir/base/error.h"

namespace pipeshard {

DiskCheck::DiskCheck(Checkpoint checkpoint, std::vector<int> needed, Content content)
    : checkpoint_(std::move(checkpoint)), needed_(std::move(needed)), content_(content) {
  thread_ = std::thread([this] { look(); });
}

DiskCheck::~DiskCheck() {
  stop_.store(true);
  if (thread_.joinable()) thread_.join();
}

void DiskCheck::look() {
  for (int i = 0; i < std::ssize(checkpoint_.files) && !stop_.load(); ++i) {
    const bool is_needed = std::ranges::binary_search(needed_, i);
    std::optional<std::string> fault = faultOfSize(checkpoint_, i);
    if (fault && fault->empty() && is_needed && content_ == Content::kRead) {
      try {
        fault = faultOfContent(checkpoint_, i, &stop_);
      } catch (const Error& error) {
        fault = error.message();
      }
    }
    if (fault ? !fault->empty() : is_needed) lacked_[i] = fault.value_or("");
  }
  done_.store(true);
}

LackedFiles DiskCheck::take() {
  thread_.join();
  return std::move(lacked_);
}

}  // namespace pipeshard
