#ifndef TESTS_BENCHMARKS_PROGRAM_CASE_H_
#define TESTS_BENCHMARKS_PROGRAM_CASE_H_

// A program to be timed.

#include <cstdint>
#include <string>
#include <vector>

#include "aqt/core/array.h"
#include "aqt/graph/program.h"
#include "aqt/runtime/executable.h"

namespace aqt::benchmarks {

struct ProgramCase {
  std::string name;
  Program program;
  std::vector<Array> args;
  int updated = 0;  // this many outputs use the memory of the first arguments

  // The bytes of all arguments and outputs.
  int64_t bytes() const;
};

// The program with memory for its outputs, ready to run repeatedly.
class PreparedCase {
 public:
  explicit PreparedCase(ProgramCase source, const ExecutableOptions& options = {});
  const ProgramCase& source() const { return source_; }
  void Run();

 private:
  ProgramCase source_;
  Executable executable_;
  std::vector<ArrayBuilder> outputs_;
  std::vector<MutableArrayRef> memory_;
};

}  // namespace aqt::benchmarks

#endif  // TESTS_BENCHMARKS_PROGRAM_CASE_H_
