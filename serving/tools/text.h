#ifndef AQT_SERVING_TOOLS_TEXT_H_
#define AQT_SERVING_TOOLS_TEXT_H_

// Text for people: sizes and tables.

#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace aqt::serving {

// "0 B", "1023 B", "1.5 KiB", "16.0 MiB".
std::string HumanBytes(int64_t bytes);

// "5GB", "500 MB", "2GiB", "1048576" as bytes; KB, MB, GB, TB are powers of 1000, KiB to TiB of 1024. Null for anything
// else, and for zero.
std::optional<int64_t> ParseBytes(absl::string_view text);

// Columns of text, each as wide as its widest cell. Cells are shown as io::Printable does.
class Table {
 public:
  explicit Table(std::vector<std::string> header) : rows_({std::move(header)}) {}
  // `row` has as many cells as the header.
  void Add(std::vector<std::string> row);
  void Print(std::ostream& out) const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace aqt::serving

#endif  // AQT_SERVING_TOOLS_TEXT_H_
