// Two processes that share memory of the device on the stand-in: one writes, the other copies it out, twice.
// `ipc_probe MISTAKE` makes one; `ipc_probe none` is right: exit code 0, and no report.
#include <cuda_runtime_api.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

constexpr size_t kBytes = 4096;
constexpr int kRounds = 2;

void require(cudaError_t code) {
  if (code == cudaSuccess) return;
  std::fprintf(stderr, "probe: %s\n", cudaGetErrorString(code));
  std::exit(3);
}

// Words from process to process.
struct Pipe {
  std::array<int, 2> ends{};
  Pipe() {
    if (::pipe(ends.data()) != 0) std::exit(4);
  }
  template <typename T>
  void say(const T& what) const {
    if (::write(ends[1], &what, sizeof what) != sizeof what) std::exit(4);
  }
  template <typename T>
  T hear() const {
    T what{};
    if (::read(ends[0], &what, sizeof what) != sizeof what) std::exit(4);
    return what;
  }
};

struct Handles {
  cudaIpcMemHandle_t memory;
  cudaIpcEventHandle_t event;
};

struct Probe {
  std::string mistake;
  Pipe to_reader, to_writer;
  cudaStream_t stream{};
  cudaEvent_t ours{}, theirs{};

  bool isMistake(const char* name) const { return mistake == name; }

  void open() {
    require(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    const unsigned timed = isMistake("timed") ? 0 : cudaEventDisableTiming;
    require(cudaEventCreateWithFlags(&ours, timed | cudaEventInterprocess));
  }
  void close() {
    for (cudaEvent_t event : {ours, theirs}) require(cudaEventDestroy(event));
    require(cudaStreamDestroy(stream));
  }

  void write() {
    open();
    void* memory = nullptr;
    require(cudaMalloc(&memory, kBytes));
    Handles handles{};
    require(cudaIpcGetMemHandle(&handles.memory, memory));
    require(cudaIpcGetEventHandle(&handles.event, ours));
    if (isMistake("own")) {
      void* again = nullptr;
      require(cudaIpcOpenMemHandle(&again, handles.memory, cudaIpcMemLazyEnablePeerAccess));
    }
    to_reader.say(handles);
    require(cudaIpcOpenEventHandle(&theirs, to_writer.hear<cudaIpcEventHandle_t>()));
    for (int round = 1; round <= kRounds; ++round) {
      if (!isMistake("unwritten")) require(cudaMemsetAsync(memory, round, kBytes, stream));
      require(cudaEventRecord(ours, stream));
      to_reader.say(round);
      to_writer.hear<int>();  // has recorded that it has read
      if (!isMistake("overwritten")) require(cudaStreamWaitEvent(stream, theirs, 0));
    }
    require(cudaStreamSynchronize(stream));
    if (isMistake("freed")) require(cudaFree(memory));
    to_reader.say(0);
    to_writer.hear<int>();  // has closed it
    if (!isMistake("freed")) require(cudaFree(memory));
    close();
  }

  void read() {
    open();
    const auto handles = to_reader.hear<Handles>();
    void* memory = nullptr;
    void* copy = nullptr;
    require(cudaIpcOpenMemHandle(&memory, handles.memory, cudaIpcMemLazyEnablePeerAccess));
    require(cudaIpcOpenEventHandle(&theirs, handles.event));
    cudaIpcEventHandle_t mine{};
    require(cudaIpcGetEventHandle(&mine, ours));
    to_writer.say(mine);
    require(cudaMalloc(&copy, kBytes));
    for (int round = 1; round <= kRounds; ++round) {
      to_reader.hear<int>();
      if (!isMistake("unordered")) require(cudaStreamWaitEvent(stream, theirs, 0));
      require(cudaMemcpyAsync(copy, memory, kBytes, cudaMemcpyDeviceToDevice, stream));
      if (!isMistake("unordered")) check(copy, round);
      require(cudaEventRecord(ours, stream));
      to_writer.say(round);
    }
    to_reader.hear<int>();
    if (!isMistake("left")) require(cudaStreamSynchronize(stream));
    if (isMistake("closed")) require(cudaIpcCloseMemHandle(memory));
    if (isMistake("closed") || isMistake("freed"))
      require(cudaMemcpyAsync(copy, memory, kBytes, cudaMemcpyDeviceToDevice, stream));
    if (isMistake("written")) require(cudaMemsetAsync(memory, 1, kBytes, stream));
    require(cudaStreamSynchronize(stream));
    if (!isMistake("left") && !isMistake("closed")) require(cudaIpcCloseMemHandle(memory));
    to_writer.say(0);
    require(cudaFree(copy));
    close();
  }

  // What lies there, in the order of the stream.
  void check(const void* copy, int round) const {
    std::vector<unsigned char> found(kBytes);
    require(cudaMemcpyAsync(found.data(), copy, kBytes, cudaMemcpyDeviceToHost, stream));
    for (const unsigned char byte : found) {
      if (byte != round && mistake == "none") std::exit(5);
    }
  }
};

}  // namespace

int main(int argc, char** argv) {
  Probe probe;
  probe.mistake = argc > 1 ? argv[1] : "none";
  const pid_t reader = ::fork();
  if (reader == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    probe.read();
    std::exit(0);
  }
  probe.write();
  int status = 0;
  ::waitpid(reader, &status, 0);
  std::fflush(nullptr);
  std::exit(WIFEXITED(status) ? WEXITSTATUS(status) : 6);
}
