// What the loops of a kind's file stand for, said once more: the document without them.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace pipeshard {

class UnrolledJson {
 public:
  using Json = nlohmann::ordered_json;

  // kindToJson's text with lists in full. Throws std::runtime_error where a loop is none.
  static std::string of(Json document) {
    for (const char* key : {"buffers", "instructions", "results", "starts"}) {
      Json items = Json::array();
      for (const Json& element : document.at(key)) {
        if (element.is_object() && element.contains("repeat")) {
          addIterations(element, key, items);
        } else {
          items.push_back(element);
        }
      }
      document[key] = items;
    }
    return document.dump();
  }

 private:
  static void expect(bool holds) {
    if (!holds) throw std::runtime_error("this is no loop");
  }

  static void addIterations(const Json& loop, const std::string& list, Json& items) {
    const Json& body = loop.at("body");
    const Json& steps = loop.at("steps");
    const int64_t count = loop.at("repeat");
    expect(count >= 1 && !body.empty() && body.size() == steps.size());
    for (int64_t k = 0; k < count; ++k) {
      for (size_t i = 0; i < body.size(); ++i) items.push_back(moved(body[i], steps[i], k, list));
    }
  }

  static Json moved(Json item, const Json& steps, int64_t iteration, const std::string& list) {
    size_t used = 0;
    const auto next = [&](int64_t number) {
      expect(used < steps.size());
      const int64_t moved = number + iteration * steps[used++].get<int64_t>();
      expect(moved >= 0);
      return moved;
    };
    if (list == "starts") {
      for (Json& number : item) number = next(number);
    } else if (list == "buffers") {
      item["name"] = movedName(item["name"], next);
    } else {
      if (item.contains("microbatch")) item["microbatch"] = next(item["microbatch"]);
      if (list == "results") item["buffer"] = next(item["buffer"]);
      if (list == "instructions") {
        item["offset"] = next(item.value("offset", 0));
        for (const char* key : {"inputs", "outputs"}) {
          for (size_t i = 0; item.contains(key) && i < item[key].size(); ++i)
            item[key][i] = next(item[key][i]);
        }
      }
    }
    expect(used == steps.size());
    return item;
  }

  static bool isDigit(char c) { return c >= '0' && c <= '9'; }

  template <typename Next>
  static std::string movedName(const std::string& name, const Next& next) {
    size_t sign = std::string::npos;
    for (size_t at = 0; at + 1 < name.size(); ++at) {
      if (name[at] == '@' && isDigit(name[at + 1])) sign = at;
    }
    if (sign == std::string::npos) return name;
    size_t end = sign + 1;
    while (end < name.size() && isDigit(name[end])) ++end;
    const std::string digits = name.substr(sign + 1, end - sign - 1);
    if (digits.size() > 9 || std::to_string(std::stol(digits)) != digits) return name;
    const int64_t moved = next(std::stol(digits));
    expect(moved < 1'000'000'000);
    return name.substr(0, sign + 1) + std::to_string(moved) + name.substr(end);
  }
};

}  // namespace pipeshard
