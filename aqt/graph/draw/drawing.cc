#include "aqt/graph/draw/drawing.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "aqt/core/array.h"
#include "aqt/graph/op.h"

namespace aqt::internal {
namespace {

const char* ColorOf(SlotKind kind) {
  switch (kind) {
    case SlotKind::kParam: return "#dbe9f9";
    case SlotKind::kStat: return "#f9ecd2";
    case SlotKind::kFrozen: return "#d7ede9";
    case SlotKind::kKey: return "#eadff5";
    case SlotKind::kData: return "#eeeeee";
  }
  return "#ffffff";
}

// A box while its equations are collected.
struct Group {
  int box = -1;
  int num_equations = 0;
  std::map<std::string, int> notes;  // number of occurrences
  std::set<std::string> colors;
};

class Maker {
 public:
  Maker(const Program& program, const DrawOptions& options)
      : program_(program), options_(options), source_(program.vars.size(), -1), several_(program.vars.size(), false) {}

  Drawing Make() && {
    for (const Program::Port& port : program_.inputs) {
      source_[port.var] = Add({.lines = {port.slot.ToString(), program_.aval(port.var).ToString()},
                               .color = ColorOf(port.slot.kind),
                               .is_rounded = true});
    }
    for (const auto& [var, array] : program_.consts) {
      if (array.num_elements() == 1) continue;
      source_[var] = Add({.lines = {"constant", array.aval().ToString()}, .is_rounded = true});
    }
    for (const Equation& eqn : program_.eqns) AddEquation(eqn);
    for (auto& [scope, group] : groups_) Finish(scope, group);
    for (const Program::Port& port : program_.outputs) {
      const int box = Add({.lines = {absl::StrCat("out ", port.slot.ToString())},
                           .color = ColorOf(port.slot.kind),
                           .is_rounded = true});
      Connect(port.var, box);
    }
    return std::move(drawing_);
  }

 private:
  int Add(Box box) {
    drawing_.boxes.push_back(std::move(box));
    return static_cast<int>(drawing_.boxes.size()) - 1;
  }

  void Connect(VarId var, int to) {
    const int from = source_[var];
    if (from < 0 || from == to || !seen_.insert({from, to, several_[var] ? var : -1}).second) return;
    drawing_.arrows.push_back({from, to, several_[var] ? program_.aval(var).ToString() : ""});
  }

  void AddEquation(const Equation& eqn) {
    const std::string& scope = program_.scope(eqn);
    const Paint paint = options_.paint ? options_.paint(eqn) : Paint();
    const bool is_folded = options_.depth.has_value() && NumLevels(scope) >= *options_.depth;
    int box = -1;
    if (is_folded) {
      Group& group = groups_[OuterScope(scope, *options_.depth)];
      if (group.box < 0) group.box = Add({});
      ++group.num_equations;
      if (!paint.note.empty()) ++group.notes[paint.note];
      if (!paint.color.empty()) group.colors.insert(paint.color);
      box = group.box;
    } else {
      box = Add(BoxOf(eqn, paint));
    }
    for (const VarId var : eqn.in) Connect(var, box);
    for (const VarId var : eqn.out) {
      source_[var] = box;
      several_[var] = eqn.out.size() > 1 && !is_folded;
    }
  }

  Box BoxOf(const Equation& eqn, const Paint& paint) const {
    Box box{.lines = {OpName(eqn.op)}, .scope = program_.scope(eqn)};
    for (const VarId var : eqn.in) {
      const auto constant = program_.consts.find(var);
      if (constant != program_.consts.end() && source_[var] < 0) {
        absl::StrAppend(&box.lines[0], " ", ContentsText(constant->second));
      }
    }
    if (!paint.note.empty()) box.lines.push_back(paint.note);
    if (!paint.color.empty()) box.color = paint.color;
    if (eqn.out.size() == 1) box.lines.push_back(program_.aval(eqn.out[0]).ToString());
    if (const std::string attributes = OpAttributes(eqn.op); !attributes.empty()) {
      box.title = absl::StrCat(attributes, ", ");
    }
    absl::StrAppend(&box.title, "at ", eqn.where.ToString());
    return box;
  }

  void Finish(const std::string& scope, const Group& group) {
    Box& box = drawing_.boxes[group.box];
    box.scope = scope;
    box.lines = {absl::StrCat(group.num_equations, group.num_equations == 1 ? " equation" : " equations")};
    for (const auto& [note, count] : group.notes) box.lines.push_back(absl::StrCat(count, " ", note));
    if (group.colors.size() == 1) box.color = *group.colors.begin();
    box.title = absl::StrCat("scope \"", scope, "\"");
  }

  const Program& program_;
  const DrawOptions& options_;
  Drawing drawing_;
  std::vector<int> source_;    // the box of each variable; -1 for one that is written into boxes
  std::vector<bool> several_;  // whether its box also has other results
  std::map<std::string, Group> groups_;
  std::set<std::tuple<int, int, VarId>> seen_;
};

}  // namespace

int NumLevels(absl::string_view scope) {
  return scope.empty() ? 0 : 1 + static_cast<int>(std::count(scope.begin(), scope.end(), '/'));
}

std::string OuterScope(absl::string_view scope, int levels) {
  if (levels <= 0) return "";
  std::string outer;
  int open = 0;
  for (const char c : scope) {
    if (c == '/' && --levels == 0) break;
    open += c == '(' ? 1 : c == ')' ? -1 : 0;
    outer.push_back(c);
  }
  return outer.append(open, ')');
}

Drawing MakeDrawing(const Program& program, const DrawOptions& options) { return Maker(program, options).Make(); }

}  // namespace aqt::internal
