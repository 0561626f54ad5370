#include "aqt/models/folder_weights.h"

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/mapped_files.h"
#include "aqt/io/printable.h"
#include "aqt/io/tensors/checkpoint.h"
#include "aqt/io/tensors/checkpoint_files.h"
#include "aqt/models/coded_weights.h"
#include "aqt/models/float_weights.h"
#include "aqt/stored/dequantized_source.h"
#include "re2/re2.h"

namespace aqt::models {
namespace {

// The tensors, in floating point where they are quantized.
struct Tensors {
  std::unique_ptr<io::Checkpoint> checkpoint;
  const io::TensorSource* stored = nullptr;
  std::unique_ptr<stored::DequantizedSource> dequantized;  // null if nothing is quantized
  const io::TensorSource& source() const {
    if (dequantized != nullptr) return *dequantized;
    return *stored;
  }
};

absl::StatusOr<Tensors> OpenTensors(const io::FileSystem& fs, absl::string_view folder, const GivenWeights* given) {
  Tensors tensors;
  if (given != nullptr) {
    tensors.stored = given->tensors;
    AQT_ASSIGN_OR_RETURN(tensors.dequantized, stored::DequantizedSource::Open(*given->tensors, given->config));
    return tensors;
  }
  AQT_ASSIGN_OR_RETURN(io::Checkpoint checkpoint, io::Checkpoint::Open(fs, folder));
  tensors.checkpoint = std::make_unique<io::Checkpoint>(std::move(checkpoint));
  tensors.stored = tensors.checkpoint.get();
  AQT_ASSIGN_OR_RETURN(tensors.dequantized, stored::DequantizedSource::OpenIfQuantized(fs, *tensors.checkpoint));
  return tensors;
}

// Removes the rules that ignore tensors which `source` does not have. Returns the names of those that it has.
std::set<std::string> DropUnusedIgnores(const io::TensorSource& source, nn::WeightsMap& map) {
  std::set<std::string> ignored;
  std::erase_if(map.rules, [&](const nn::WeightRule& rule) {
    if (rule.slot.has_value()) return false;
    const re2::RE2 pattern(rule.tensor);
    bool used = false;
    for (const io::TensorInfo& tensor : source.tensors()) {
      if (!re2::RE2::FullMatch(tensor.name, pattern)) continue;
      used = true;
      ignored.insert(tensor.name);
    }
    return !used;
  });
  return ignored;
}

// The end of a note about tables.
std::string LookedUp(size_t tables) {
  if (tables == 0) return "";
  return absl::StrCat(", and rows of ", tables, tables == 1 ? " table are" : " tables are", " looked up so");
}

class Loader {
 public:
  Loader(const Tensors& tensors, CodedWeights coded, const io::MappedFiles* files)
      : tensors_(tensors), coded_(std::move(coded)), floats_(tensors.source()) {
    if (files != nullptr && tensors.checkpoint != nullptr) floats_.MapFrom(*files, *tensors.checkpoint);
  }

  absl::Status Load(const nn::WeightPlace& place) {
    const stored::StoredWeight* const weight =
        tensors_.dequantized == nullptr ? nullptr : tensors_.dequantized->FindWeight(place.tensor->name);
    if (weight != nullptr) {
      AQT_ASSIGN_OR_RETURN(const std::string why, AddCoded(place, *weight));
      if (why.empty()) return absl::OkStatus();
      multiplied_out_[why].insert(place.tensor->name);
    }
    AQT_ASSIGN_OR_RETURN(Array value, floats_.Value(place));
    loaded_.values.emplace(place.slot, std::move(value));
    return absl::OkStatus();
  }

  FolderWeights Finish() {
    loaded_.rules = coded_.Rules();
    loaded_.tables = coded_.tables();
    loaded_.values.merge(coded_.TakeFrozen());
    if (tensors_.dequantized != nullptr) AddNotes();
    return std::move(loaded_);
  }

 private:
  absl::StatusOr<std::string> AddCoded(const nn::WeightPlace& place, const stored::StoredWeight& weight) {
    if (std::string why = weight.WhyNoCodes(); !why.empty()) return why;
    if (codes_of_ != place.tensor) {
      AQT_ASSIGN_OR_RETURN(codes_, tensors_.dequantized->ReadCodes(weight));
      codes_of_ = place.tensor;
    }
    return coded_.Add(place, codes_);
  }

  void AddNotes() {
    std::vector<std::string>& notes = loaded_.notes;
    notes.push_back(absl::StrCat("the weights are stored quantized (", tensors_.dequantized->Description(), "); ",
                                 coded_.num_products(), " products are computed with them as they are stored",
                                 LookedUp(coded_.tables().size())));
    for (const auto& [why, names] : multiplied_out_) {
      notes.push_back(absl::StrCat(names.size(),
                                   " quantized weights are multiplied out and computed in floating point, ", "because ",
                                   why, ": ", io::ListSome({names.begin(), names.end()})));
    }
    notes.insert(notes.end(), tensors_.dequantized->notes().begin(), tensors_.dequantized->notes().end());
  }

  const Tensors& tensors_;
  CodedWeights coded_;
  FloatReader floats_;
  FolderWeights loaded_;
  std::map<std::string, std::set<std::string>> multiplied_out_;  // names of tensors, by the reason
  // The last tensor that was read as it is stored: places of one tensor are consecutive.
  const io::TensorInfo* codes_of_ = nullptr;
  stored::WeightCodes codes_;
};

}  // namespace

absl::StatusOr<FolderWeights> LoadFolderWeights(const io::FileSystem& fs, absl::string_view folder, nn::WeightsMap map,
                                                const Program& program, const GivenWeights* given) {
  AQT_ASSIGN_OR_RETURN(const Tensors tensors, OpenTensors(fs, folder, given));
  const std::set<std::string> ignored = DropUnusedIgnores(tensors.source(), map);
  for (nn::WeightRule& rule : map.rules) rule.cast = rule.slot.has_value();
  AQT_ASSIGN_OR_RETURN(const std::vector<nn::WeightPlace> places, PlaceFolderWeights(map, tensors.source(), program));
  AQT_ASSIGN_OR_RETURN(CodedWeights coded, CodedWeights::Of(program));
  Loader loader(tensors, std::move(coded), io::MappedFiles::Of(fs));
  for (const nn::WeightPlace& place : places) AQT_RETURN_IF_ERROR(loader.Load(place));
  FolderWeights weights = loader.Finish();
  if (!ignored.empty()) {
    weights.notes.push_back(absl::StrCat(ignored.size(), ignored.size() == 1 ? " tensor is" : " tensors are",
                                         " not used: ", io::ListSome({ignored.begin(), ignored.end()})));
  }
  return weights;
}

}  // namespace aqt::models
