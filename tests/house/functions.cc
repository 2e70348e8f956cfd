#include "tests/house/functions.h"

#include <algorithm>
#include <cctype>
#include <string_view>
#include <utility>

namespace pipeshard::house {
namespace {

constexpr size_t kEnd = std::string_view::npos;

bool isSpace(char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; }
bool isOfName(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// Behind `closing`, from `begin` on; the end of the text without one.
size_t behind(const std::string& text, std::string_view closing, size_t begin) {
  const size_t found = text.find(closing, begin);
  return found == kEnd ? text.size() : found + closing.size();
}

// Behind a string or character that begins at `begin`.
size_t behindLiteral(const std::string& text, size_t begin) {
  size_t end = begin + 1;
  while (end < text.size() && text[end] != text[begin] && text[end] != '\n') end += text[end] == '\\' ? 2 : 1;
  return std::min(end + 1, text.size());
}

size_t behindRawString(const std::string& text, size_t begin) {
  const size_t open = std::min(text.find('(', begin), text.size());
  return behind(text, ")" + text.substr(begin + 2, open - begin - 2) + "\"", open);
}

size_t behindDirective(const std::string& text, size_t begin) {
  size_t end = text.find('\n', begin);
  while (end != kEnd && text[end - 1] == '\\') end = text.find('\n', end + 1);
  return std::min(end, text.size());
}

// Behind what is no code and begins at `begin`: a comment, a literal, a directive; `begin` where none does.
size_t behindOther(const std::string& text, size_t begin, bool first_of_line) {
  const std::string_view rest = std::string_view(text).substr(begin, 2);
  const bool in_name = begin > 0 && isOfName(text[begin - 1]);
  if (rest == "//") return std::min(text.find('\n', begin), text.size());
  if (rest == "/*") return behind(text, "*/", begin + 2);
  if (rest == "R\"" && !in_name) return behindRawString(text, begin);
  if (rest[0] == '"' || (rest[0] == '\'' && !in_name)) return behindLiteral(text, begin);  // in_name: 1'000
  if (rest[0] == '#' && first_of_line) return behindDirective(text, begin);
  return begin;
}

// The same lines, with blanks for what is no code; of a literal its first quote stays.
std::string codeOf(std::string text) {
  bool first_of_line = true;
  for (size_t i = 0; i < text.size();) {
    const size_t end = behindOther(text, i, first_of_line);
    const size_t begin = i;
    if (text[i] == '\n')
      first_of_line = true;
    else if (!isSpace(text[i]))
      first_of_line = false;
    i = std::max(end, i + 1);
    for (size_t k = text[begin] == '"' ? begin + 1 : begin; k < end; ++k) {
      if (text[k] != '\n') text[k] = ' ';
    }
  }
  return text;
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && isSpace(text.front())) text.remove_prefix(1);
  while (!text.empty() && isSpace(text.back())) text.remove_suffix(1);
  return text;
}

bool beginsWithWord(std::string_view text, std::string_view word) {
  return text.starts_with(word) && (text.size() == word.size() || !isOfName(text[word.size()]));
}

// Without "template <...>".
std::string_view withoutTemplate(std::string_view head) {
  head = trimmed(head);
  if (!beginsWithWord(head, "template")) return head;
  int depth = 0;
  for (size_t i = 0; i < head.size(); ++i) {
    if (head[i] == '<') ++depth;
    if (head[i] == '>' && --depth == 0) return withoutTemplate(head.substr(i + 1));
  }
  return head;
}

// What stands before a brace of a namespace or a type.
bool opensScope(std::string_view head) {
  head = withoutTemplate(head);
  if (beginsWithWord(head, "inline")) head = trimmed(head.substr(6));
  if (beginsWithWord(head, "extern")) return head.find(')') == kEnd;
  return beginsWithWord(head, "namespace") || beginsWithWord(head, "class") ||
         beginsWithWord(head, "struct") || beginsWithWord(head, "union") || beginsWithWord(head, "enum");
}

// "= " before the brace, outside parentheses: the brace begins a value.
bool assigns(std::string_view head) {
  head = withoutTemplate(head);
  if (head.find("operator") != kEnd) return false;
  int depth = 0;
  for (const char c : head) {
    if (c == '(') ++depth;
    if (c == ')') --depth;
    if (c == '=' && depth == 0) return true;
  }
  return false;
}

// A lambda's brackets, parameters and result stand before the brace.
bool endsInLambda(std::string_view head) {
  head = trimmed(head);
  if (const size_t arrow = head.rfind("->"); arrow != kEnd && head.find_first_of("(){}", arrow) == kEnd)
    head = trimmed(head.substr(0, arrow));
  for (const std::string_view word : {"mutable", "noexcept"}) {
    if (head.ends_with(word)) head = trimmed(head.substr(0, head.size() - word.size()));
  }
  if (head.ends_with(')')) {
    int depth = 0;
    size_t open = head.size();
    while (open > 0) {
      --open;
      if (head[open] == ')') ++depth;
      if (head[open] == '(' && --depth == 0) break;
    }
    head = trimmed(head.substr(0, open));
  }
  if (!head.ends_with(']')) return false;
  const size_t open = head.rfind('[');
  const std::string_view before = trimmed(head.substr(0, open == kEnd ? 0 : open));
  return before.empty() || !isOfName(before.back());
}

// "return NAME" or "return {...}"
bool returnsData(std::string_view statement) {
  if (!beginsWithWord(statement, "return")) return false;
  const std::string_view what = trimmed(statement.substr(6));
  return what.starts_with('{') || std::all_of(what.begin(), what.end(), isOfName);
}

// Nothing but `static const` data, and their return.
bool isTable(std::string_view body) {
  int depth = 0;
  size_t begin = 0;
  for (size_t i = 0; i < body.size(); ++i) {
    if (body[i] == '(' || body[i] == '{') ++depth;
    if (body[i] == ')' || body[i] == '}') --depth;
    if (body[i] != ';') continue;
    if (depth > 0) return false;
    const std::string_view statement = trimmed(body.substr(begin, i - begin));
    begin = i + 1;
    if (returnsData(statement)) return trimmed(body.substr(begin)).empty();
    if (!beginsWithWord(statement, "static const") && !beginsWithWord(statement, "static constexpr"))
      return false;
  }
  return false;
}

class Scanner {
 public:
  explicit Scanner(const std::string& text) : code_(codeOf(text)) {}

  std::vector<FunctionLines> functions() {
    for (place_ = 0; place_ < code_.size(); ++place_) {
      const char c = code_[place_];
      if (c == '(') ++parentheses_;
      if (c == ')') --parentheses_;
      if (c == ';' && parentheses_ == 0) head_ = place_ + 1;
      if (c == ':' && isAccess()) head_ = place_ + 1;
      if (c == '{') open();
      if (c == '}') close();
    }
    return std::move(found_);
  }

 private:
  std::string_view head() const { return std::string_view(code_).substr(head_, place_ - head_); }

  bool isAccess() const {
    const std::string_view word = trimmed(head());
    return word == "public" || word == "private" || word == "protected";
  }

  void open() {
    const bool is_function = parentheses_ == 0 && tables_ == 0 && head().find(')') != kEnd &&
                             !opensScope(head()) && !assigns(head());
    if (is_function || endsInLambda(head())) return passFunction();
    const bool is_scope = parentheses_ == 0 && opensScope(head());
    if (!is_scope) ++tables_;
    is_table_.push_back(!is_scope);
    head_ = place_ + 1;
  }

  void close() {
    if (!is_table_.empty()) {
      if (is_table_.back()) --tables_;
      is_table_.pop_back();
    }
    head_ = place_ + 1;
  }

  // From its brace to the one that closes it.
  void passFunction() {
    const size_t open = place_;
    const bool is_lambda = endsInLambda(head());
    for (int depth = 0; place_ < code_.size(); ++place_) {
      if (code_[place_] == '{') ++depth;
      if (code_[place_] == '}' && --depth == 0) break;
    }
    const std::string_view rest = trimmed(std::string_view(code_).substr(std::min(place_ + 1, code_.size())));
    // The first brace was a member's value: X() : a_{1}, b_{2} {}
    if (!is_lambda && (rest.starts_with(',') || rest.starts_with('{'))) return;
    add(open);
    head_ = place_ + 1;
  }

  void add(size_t open) {
    size_t begin = head_;
    while (isSpace(code_[begin])) ++begin;
    const size_t last = lineOf(place_);
    if (beginsWithWord(std::string_view(code_).substr(begin), "catch") && !found_.empty()) {
      found_.back().last = last;  // of a function that is a `try`
      return;
    }
    if (!isTable(std::string_view(code_).substr(open + 1, place_ - open - 1)))
      found_.push_back({lineOf(begin), last});
  }

  size_t lineOf(size_t place) const {
    const auto end = code_.begin() + static_cast<std::ptrdiff_t>(std::min(place, code_.size()));
    return 1 + static_cast<size_t>(std::count(code_.begin(), end, '\n'));
  }

  std::string code_;
  size_t place_ = 0;
  size_t head_ = 0;  // where what stands before the next brace begins
  int parentheses_ = 0;
  int tables_ = 0;  // braces of values that are open
  std::vector<bool> is_table_;
  std::vector<FunctionLines> found_;
};

}  // namespace

std::vector<FunctionLines> functionsOf(const std::string& text) { return Scanner(text).functions(); }

}  // namespace pipeshard::house
