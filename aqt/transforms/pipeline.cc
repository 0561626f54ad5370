#include "aqt/transforms/pipeline.h"

#include <cstdlib>
#include <fstream>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "aqt/core/status_macros.h"

namespace aqt {
namespace {

absl::Status Dump(const char* folder, int number, absl::string_view name, const Program& program) {
  const std::string path = absl::StrCat(folder, "/", absl::StrFormat("%02d_", number), name, ".txt");
  std::ofstream file(path);
  file << ToText(program, {.source_lines = true});
  file.close();
  if (file.fail()) return absl::UnavailableError(absl::StrCat("pipeline: cannot write ", path, " (AQT_DUMP_PROGRAMS)"));
  return absl::OkStatus();
}

}  // namespace

absl::string_view ToString(StageKind kind) {
  switch (kind) {
    case StageKind::kAmp: return "amp";
    case StageKind::kInject: return "inject";
    case StageKind::kGrad: return "grad";
    case StageKind::kScalify: return "scalify";
    case StageKind::kExpand: return "expand";
    case StageKind::kFold: return "fold";
    case StageKind::kDce: return "dce";
  }
  return "?";
}

Pipeline& Pipeline::Add(StageKind kind, std::string name, Transform transform) {
  stages_.push_back({kind, std::move(name), std::move(transform)});
  return *this;
}

absl::StatusOr<Program> Pipeline::Run(const Program& program, const Observer& observer) const {
  const Stage* last = nullptr;
  for (const Stage& stage : stages_) {
    if (stage.transform == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("pipeline: stage \"", stage.name, "\" (", ToString(stage.kind), ") has no function"));
    }
    if (stage.kind == StageKind::kDce) continue;
    if (last != nullptr && stage.kind < last->kind) {
      return absl::InvalidArgumentError(absl::StrCat("pipeline: stage \"", stage.name, "\" (", ToString(stage.kind),
                                                     ") comes after \"", last->name, "\" (", ToString(last->kind),
                                                     "); the order is amp, inject, grad, scalify, expand, fold"));
    }
    last = &stage;
  }
  const char* folder = std::getenv("AQT_DUMP_PROGRAMS");
  const auto show = [&](int number, absl::string_view name, const Program& stage) {
    if (observer) observer(number, name, stage);
    return folder != nullptr && *folder != '\0' ? Dump(folder, number, name, stage) : absl::OkStatus();
  };
  Program current = program;
  AQT_RETURN_IF_ERROR(show(0, "source", current));
  for (size_t i = 0; i < stages_.size(); ++i) {
    absl::StatusOr<Program> next = stages_[i].transform(current);
    if (!next.ok()) return Annotate(next.status(), absl::StrCat("stage \"", stages_[i].name, "\""));
    current = *std::move(next);
    AQT_RETURN_IF_ERROR(show(static_cast<int>(i) + 1, stages_[i].name, current));
  }
  return current;
}

}  // namespace aqt
