// Programs without products (elementwise_programs.h), each in one call of an Executable, repeated on the same memory. A
// shape is ROWSxCOLUMNS; the name of the program replaces the dtype. `roof` is the rate of reading arguments and
// writing outputs, each once, as a fraction of the rate of a copy of the same number of bytes.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "aqt/core/executor.h"
#include "aqt/graph/context.h"
#include "tests/benchmarks/elementwise_programs.h"
#include "tests/benchmarks/program_case.h"
#include "tests/benchmarks/suite.h"

namespace aqt::benchmarks {
namespace {

std::function<void()> Call(const ProgramCase& of, Executor* executor) {
  const auto prepared = std::make_shared<PreparedCase>(of);
  return [prepared, executor] {
    const UseExecutor use(executor);
    prepared->Run();
  };
}

absl::Status Add(const std::string& shape, std::vector<Row>& rows) {
  int64_t num_rows = 0, columns = 0;
  const std::vector<absl::string_view> sizes = absl::StrSplit(shape, 'x');
  if (sizes.size() != 2 || !absl::SimpleAtoi(sizes[0], &num_rows) || !absl::SimpleAtoi(sizes[1], &columns) ||
      num_rows < 1 || columns < 1) {
    return absl::InvalidArgumentError(absl::StrCat(shape, " is not a shape; expected ROWSxCOLUMNS, as in 4096x1024"));
  }
  for (ProgramCase& program : ElementwisePrograms(num_rows, columns)) {
    const auto shared = std::make_shared<const ProgramCase>(std::move(program));
    // The copy has half of all bytes: each is read and written.
    const Work work = {.copies = shared->bytes() / 2};
    rows.push_back({"", "elementwise", shape, shared->name, "aqt", work,
                    [shared](Executor* executor) { return Call(*shared, executor); }});
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace aqt::benchmarks

int main(int argc, char** argv) { return aqt::benchmarks::SuiteMain(argc, argv, {"4096x1024"}, &aqt::benchmarks::Add); }
