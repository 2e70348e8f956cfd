#include "ir/program/numbers.h"

#include <charconv>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

namespace pipeshard {
namespace {

constexpr size_t kMostDigits = 9;

// Where in the name its number is; empty where there is none that reads back as it is written.
std::string_view digitsOf(std::string_view name) {
  for (size_t sign = name.rfind('@'); sign != std::string_view::npos;
       sign = sign == 0 ? std::string_view::npos : name.rfind('@', sign - 1)) {
    const std::string_view rest = name.substr(sign + 1);
    const std::string_view digits =
        rest.substr(0, std::min(rest.find_first_not_of("0123456789"), rest.size()));
    if (digits.empty()) continue;
    const bool plain = digits.size() <= kMostDigits && (digits == "0" || digits[0] != '0');
    return plain ? digits : std::string_view{};
  }
  return {};
}

void addIds(const std::vector<BufferId>& ids, std::vector<int64_t>& numbers) {
  for (const BufferId id : ids) numbers.push_back(static_cast<int64_t>(id.index()));
}

// Takes the ids' numbers off the front.
void setIds(std::vector<BufferId>& ids, std::span<const int64_t>& numbers) {
  for (BufferId& id : ids) {
    id = BufferId(static_cast<size_t>(numbers.front()));
    numbers = numbers.subspan(1);
  }
}

// Fields one behind the other, so that different fields make different bytes.
class Form {
 public:
  Form& add(int64_t number) {
    bytes_.append(reinterpret_cast<const char*>(&number), sizeof(number));
    return *this;
  }
  template <typename Tag>
  Form& add(Id<Tag> id) {
    return add(id.valid() ? static_cast<int64_t>(id.index()) : -1);
  }
  Form& add(std::string_view text) {
    add(std::ssize(text));
    bytes_ += text;
    return *this;
  }
  Form& add(const Shape& shape) {
    add(std::ssize(shape));
    for (const int64_t size : shape) add(size);
    return *this;
  }
  std::string take() && { return std::move(bytes_); }

 private:
  std::string bytes_;
};

}  // namespace

std::vector<int64_t> numbersOf(const Instruction& instruction) {
  std::vector<int64_t> numbers;
  numbers.reserve(2 + instruction.inputs.size() + instruction.outputs.size());
  if (instruction.microbatch >= 0) numbers.push_back(instruction.microbatch);
  numbers.push_back(instruction.offset);
  addIds(instruction.inputs, numbers);
  addIds(instruction.outputs, numbers);
  return numbers;
}

std::vector<int64_t> numbersOf(const Buffer& buffer) {
  const std::string_view digits = digitsOf(buffer.name);
  if (digits.empty()) return {};
  int64_t number = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), number);
  return {number};
}

std::vector<int64_t> numbersOf(const Result& result) {
  std::vector<int64_t> numbers;
  if (result.microbatch >= 0) numbers.push_back(result.microbatch);
  numbers.push_back(static_cast<int64_t>(result.buffer.index()));
  return numbers;
}

std::vector<int64_t> numbersOf(const std::vector<int64_t>& numbers) { return numbers; }

void setNumbers(Instruction& instruction, std::span<const int64_t> numbers) {
  if (instruction.microbatch >= 0) {
    instruction.microbatch = static_cast<int>(numbers.front());
    numbers = numbers.subspan(1);
  }
  instruction.offset = numbers.front();
  numbers = numbers.subspan(1);
  setIds(instruction.inputs, numbers);
  setIds(instruction.outputs, numbers);
}

void setNumbers(Buffer& buffer, std::span<const int64_t> numbers) {
  if (numbers.empty()) return;
  const std::string_view digits = digitsOf(buffer.name);
  buffer.name.replace(digits.data() - buffer.name.data(), digits.size(), std::to_string(numbers.front()));
}

void setNumbers(Result& result, std::span<const int64_t> numbers) {
  if (result.microbatch >= 0) result.microbatch = static_cast<int>(numbers.front());
  result.buffer = BufferId(static_cast<size_t>(numbers.back()));
}

void setNumbers(std::vector<int64_t>& item, std::span<const int64_t> numbers) {
  item.assign(numbers.begin(), numbers.end());
}

std::string formOf(const Instruction& instruction) {
  Form form;
  form.add(static_cast<int64_t>(instruction.kind)).add(instruction.subgraph).add(instruction.stage);
  form.add(instruction.peer).add(instruction.group).add(instruction.axis);
  const bool of_microbatch = instruction.microbatch >= 0;
  form.add(of_microbatch + 2 * instruction.overwrite + 4 * instruction.background);
  form.add(std::ssize(instruction.inputs)).add(std::ssize(instruction.outputs));
  return std::move(form).take();
}

std::string formOf(const Buffer& buffer) {
  if (buffer.source) return {};
  const std::string_view digits = digitsOf(buffer.name);
  const size_t begin = digits.empty() ? buffer.name.size() : digits.data() - buffer.name.data();
  Form form;
  form.add(static_cast<int64_t>(buffer.kind)).add(static_cast<int64_t>(buffer.data_type)).add(buffer.update);
  form.add(std::string_view(buffer.name).substr(0, begin)).add(digits.empty() ? "" : "0");
  form.add(std::string_view(buffer.name).substr(begin + digits.size()));
  form.add(buffer.value).add(buffer.shape).add(buffer.part.has_value());
  if (buffer.part) form.add(buffer.part->whole).add(buffer.part->start);
  return std::move(form).take();
}

std::string formOf(const Result& result) {
  Form form;
  form.add(static_cast<int64_t>(result.kind)).add(result.name).add(result.state).add(result.update);
  form.add(result.axis).add((result.microbatch >= 0) + 2 * result.transposed).add(result.divided_axis);
  return std::move(form).take();
}

std::string formOf(const std::vector<int64_t>& numbers) {
  return std::move(Form().add(std::ssize(numbers))).take();
}

std::vector<int64_t> limitsOf(const Instruction& instruction, const Program& program) {
  std::vector<int64_t> limits;
  if (instruction.microbatch >= 0) limits.push_back(program.microbatches - 1);
  limits.push_back(std::numeric_limits<int64_t>::max());
  limits.resize(limits.size() + instruction.inputs.size() + instruction.outputs.size(),
                std::ssize(program.buffers) - 1);
  return limits;
}

std::vector<int64_t> limitsOf(const Buffer& buffer, const Program&) {
  return std::vector<int64_t>(digitsOf(buffer.name).empty() ? 0 : 1, 999'999'999);
}

std::vector<int64_t> limitsOf(const Result& result, const Program& program) {
  std::vector<int64_t> limits;
  if (result.microbatch >= 0) limits.push_back(std::numeric_limits<int32_t>::max());
  limits.push_back(std::ssize(program.buffers) - 1);
  return limits;
}

std::vector<int64_t> limitsOf(const std::vector<int64_t>& numbers, const Program&) {
  return std::vector<int64_t>(numbers.size(), std::numeric_limits<int32_t>::max());
}

}  // namespace pipeshard
