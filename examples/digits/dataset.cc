#include "examples/digits/dataset.h"

#include <fstream>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace digits {

Dataset Dataset::Slice(int64_t first, int64_t last) const {
  return {{pixels.begin() + first * kPixels, pixels.begin() + last * kPixels},
          {labels.begin() + first, labels.begin() + last}};
}

absl::StatusOr<Dataset> ReadDataset(const std::string& path) {
  std::ifstream file(path);
  if (!file) return absl::NotFoundError(absl::StrCat(path, ": cannot be opened"));
  Dataset data;
  std::string line;
  std::getline(file, line);  // the names of the columns
  for (int number = 2; std::getline(file, line); ++number) {
    const std::vector<absl::string_view> fields = absl::StrSplit(line, ',');
    bool good = static_cast<int64_t>(fields.size()) == kPixels + 1;
    for (size_t i = 0; good && i < fields.size(); ++i) {
      int value = 0;
      good = absl::SimpleAtoi(fields[i], &value) && value >= 0 && value <= (i == 0 ? kClasses - 1 : 16);
      if (i == 0) {
        data.labels.push_back(value);
      } else {
        data.pixels.push_back(static_cast<float>(value) / 16);
      }
    }
    if (!good) {
      return absl::InvalidArgumentError(absl::StrCat(path, ":", number, ": want a label 0..9 and 64 pixels 0..16, got ",
                                                     absl::string_view(line).substr(0, 80)));
    }
  }
  return data;
}

}  // namespace digits
