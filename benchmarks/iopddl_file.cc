#include "benchmarks/iopddl_file.h"

#include <cerrno>
#include <cstring>
#include <limits>
#include <memory>
#include <string_view>

#include <zlib.h>

#include "ir/base/error.h"
#include "sharding/solver/evaluate.h"

namespace pipeshard {

namespace {

std::string readAll(const std::string& path) {
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> file(gzopen(path.c_str(), "rb"), gzclose);
  if (!file) fail(ErrorCode::kMissingInput, "cannot open {}: {}", path, std::strerror(errno));
  gzbuffer(file.get(), 1 << 18);
  std::string text;
  constexpr size_t kChunk = size_t{1} << 22;
  for (size_t size = 0;;) {
    text.resize(size + kChunk);
    const int read = gzread(file.get(), text.data() + size, kChunk);
    if (read < 0) {
      int code = 0;
      const char* message = gzerror(file.get(), &code);
      fail(ErrorCode::kMissingInput, "cannot read {}: {}", path,
           code == Z_ERRNO ? std::strerror(errno) : message);
    }
    size += static_cast<size_t>(read);
    text.resize(size);
    if (read == 0) return text;
  }
}

// Just as much JSON as the files need.
class Reader {
 public:
  explicit Reader(const std::string& text) : begin_(text.data()), at_(begin_), end_(begin_ + text.size()) {}

  // Calls visit(key) for every key; it must read the value.
  template <typename Visit>
  void object(Visit visit) {
    nest();
    expect('{');
    if (!accept('}')) {
      do {
        const std::string_view key = string();
        expect(':');
        visit(key);
      } while (accept(','));
      expect('}');
    }
    --depth_;
  }

  template <typename Visit>
  void array(Visit visit) {
    nest();
    expect('[');
    if (!accept(']')) {
      do {
        visit();
      } while (accept(','));
      expect(']');
    }
    --depth_;
  }

  int64_t integer() {
    space();
    const bool negative = at_ < end_ && *at_ == '-';
    if (negative) ++at_;
    if (at_ == end_ || *at_ < '0' || *at_ > '9') wrong("an integer");
    constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
    int64_t value = 0;
    for (; at_ < end_ && *at_ >= '0' && *at_ <= '9'; ++at_) {
      const int digit = *at_ - '0';
      value = value > (kMost - digit) / 10 ? kMost : value * 10 + digit;
    }
    if (at_ < end_ && (*at_ == '.' || *at_ == 'e' || *at_ == 'E')) wrong("an integer");
    return negative ? -value : value;
  }

  std::vector<int64_t> integers() {
    std::vector<int64_t> values;
    array([&] { values.push_back(integer()); });
    return values;
  }

  void skip() {
    space();
    const char next = at_ < end_ ? *at_ : '\0';
    if (next == '{') return object([&](std::string_view) { skip(); });
    if (next == '[') return array([&] { skip(); });
    if (next == '"') return static_cast<void>(string());
    const char* from = at_;
    while (at_ < end_ && std::strchr(",]} \t\r\n", *at_) == nullptr) ++at_;
    if (at_ == from) wrong("a value");
  }

  void end() {
    space();
    if (at_ != end_) wrong("the end of the file");
  }

  [[noreturn]] void wrong(std::string_view expected) {
    fail(ErrorCode::kBadModel, "at byte {}: expected {}{}", at_ - begin_, expected,
         at_ == end_ ? ", found the end of the file" : "");
  }

 private:
  void space() {
    while (at_ < end_ && (*at_ == ' ' || *at_ == '\n' || *at_ == '\r' || *at_ == '\t')) ++at_;
  }
  void nest() {
    if (++depth_ > 64) wrong("fewer nested values");
  }
  bool accept(char c) {
    space();
    if (at_ == end_ || *at_ != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!accept(c)) wrong(std::string("'") + c + "'");
  }
  // Escapes stay as they are.
  std::string_view string() {
    expect('"');
    const char* from = at_;
    while (at_ < end_ && *at_ != '"') at_ += *at_ == '\\' ? 2 : 1;
    if (at_ >= end_) {
      at_ = end_;
      wrong("the end of a string");
    }
    return {from, static_cast<size_t>(at_++ - from)};
  }

  const char* begin_;
  const char* at_;
  const char* end_;
  int depth_ = 0;
};

class File {
 public:
  explicit File(const std::string& text) : reader_(text) {}

  SolverProblem read() {
    reader_.object([&](std::string_view key) { member(key); });
    reader_.end();
    if (!nodes_ || !edges_)
      fail(ErrorCode::kBadModel, "it has no \"nodes\" or no \"edges\": not a problem of the contest");
    return std::move(problem_);
  }

 private:
  void member(std::string_view key) {
    if (key == "problem") {
      reader_.object([&](std::string_view inner) { member(inner); });
    } else if (key == "nodes") {
      nodes();
    } else if (key == "edges") {
      edges();
    } else if (key == "usage_limit") {
      problem_.usage_limit = reader_.integer();
    } else {
      reader_.skip();
    }
  }

  // Grows a list element by element while another list of the same elements may have been read before.
  template <typename Element, typename Fill>
  size_t list(std::vector<Element>& elements, Fill fill) {
    size_t count = 0;
    reader_.array([&] {
      if (count == elements.size()) elements.emplace_back();
      fill(elements[count++]);
    });
    return count;
  }

  void nodes() {
    using Node = SolverProblem::Node;
    nodes_ = true;
    size_t intervals = 0, costs = 0, usages = 0;
    reader_.object([&](std::string_view key) {
      if (key == "intervals") {
        intervals = list(problem_.nodes, [&](Node& node) {
          const std::vector<int64_t> interval = reader_.integers();
          if (interval.size() != 2) reader_.wrong("an interval of two times before this");
          node.from = interval[0];
          node.to = interval[1];
        });
      } else if (key == "costs") {
        costs = list(problem_.nodes, [&](Node& node) { node.costs = reader_.integers(); });
      } else if (key == "usages") {
        usages = list(problem_.nodes, [&](Node& node) { node.usages = reader_.integers(); });
      } else {
        reader_.skip();
      }
    });
    if (intervals != costs || usages != costs) {
      fail(ErrorCode::kBadModel,
           "there are {} intervals, {} costs and {} usages of nodes; expected as many of each", intervals,
           costs, usages);
    }
  }

  void edges() {
    using Edge = SolverProblem::Edge;
    edges_ = true;
    size_t nodes = 0, costs = 0;
    reader_.object([&](std::string_view key) {
      if (key == "nodes") {
        nodes = list(problem_.edges, [&](Edge& edge) {
          reader_.array([&] {
            const int64_t node = reader_.integer();
            if (node < 0 || node > std::numeric_limits<int32_t>::max())
              reader_.wrong("the number of a node before this");
            edge.nodes.push_back(node);
          });
        });
      } else if (key == "costs") {
        costs = list(problem_.edges, [&](Edge& edge) { edge.costs = reader_.integers(); });
      } else {
        reader_.skip();
      }
    });
    if (nodes != costs)
      fail(ErrorCode::kBadModel, "there are {} nodes and {} costs of edges; expected as many of each", nodes,
           costs);
  }

  Reader reader_;
  SolverProblem problem_;
  bool nodes_ = false;
  bool edges_ = false;
};

}  // namespace

SolverProblem readIopddl(const std::string& path) {
  const std::string text = readAll(path);
  try {
    SolverProblem problem = File(text).read();
    checkProblem(problem);
    return problem;
  } catch (const Error& error) {
    fail(ErrorCode::kBadModel, "{}: {}", path, error.message());
  }
}

}  // namespace pipeshard
