// Computes embeddings of a model's folder on request, so that a script can take turns with other programs:
//
//   encoder_times FOLDER PRESET THREADS
//
// PRESET is float or an inject preset. Each line of the input is "BATCH LENGTH" and then BATCH x LENGTH token ids; each
// line of the output is the seconds of one evaluation and then the embeddings, or only the seconds if the line has no
// ids. A shape's first evaluation compiles it.

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/machine/thread_pool.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/context.h"
#include "aqt/io/file.h"
#include "aqt/models/encoder_model.h"
#include "aqt/runtime/prepared_program.h"
#include "aqt/transforms/quantize/inject_proto.h"

namespace aqt {
namespace {

using Programs = std::map<std::pair<int64_t, int64_t>, PreparedProgram>;

absl::StatusOr<const PreparedProgram*> ProgramFor(const models::EncoderModel& model, const InjectConfig& config,
                                                  int64_t batch, int64_t length, Programs& programs) {
  const auto it = programs.find({batch, length});
  if (it != programs.end()) return &it->second;
  AQT_ASSIGN_OR_RETURN(const Program program, model.EmbeddingProgram(batch, length));
  AQT_ASSIGN_OR_RETURN(PreparedProgram served, model.Serve({program}, config));
  return &programs.emplace(std::make_pair(batch, length), std::move(served)).first->second;
}

// Answers one line of the input. 0 does not count, as a padded id.
absl::Status Answer(const models::EncoderModel& model, const InjectConfig& config, const std::string& line,
                    Programs& programs) {
  std::istringstream in(line);
  int64_t batch = 0, length = 0;
  in >> batch >> length;
  if (!in || batch < 1 || length < 1) return absl::InvalidArgumentError(absl::StrCat("no shape in \"", line, "\""));
  std::vector<int32_t> ids;
  for (int32_t id; in >> id;) ids.push_back(id);
  const bool timed_only = ids.empty();
  if (timed_only) {
    for (int64_t i = 0; i < batch * length; ++i) ids.push_back(static_cast<int32_t>(1000 + i * 37 % 20000));
  }
  if (static_cast<int64_t>(ids.size()) != batch * length) return absl::InvalidArgumentError("too many or too few ids");
  std::vector<int32_t> lengths(batch, static_cast<int32_t>(length));
  for (int64_t b = 0; b < batch; ++b) {
    while (lengths[b] > 1 && ids[b * length + lengths[b] - 1] == 0) --lengths[b];
  }
  AQT_ASSIGN_OR_RETURN(const PreparedProgram* program, ProgramFor(model, config, batch, length, programs));
  const SlotValues inputs = {{models::kIds, Array::FromSpan(absl::MakeConstSpan(ids), {batch, length})},
                             {models::kLengths, Array::FromSpan(absl::MakeConstSpan(lengths), {batch})}};
  const auto start = std::chrono::steady_clock::now();
  AQT_ASSIGN_OR_RETURN(const SlotValues out, program->Eval(inputs));
  std::cout << std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (!timed_only) {
    std::cout.precision(9);
    for (const float value : out.at(models::kEmbeddings).View<float>()) std::cout << ' ' << value;
  }
  std::cout << std::endl;
  return absl::OkStatus();
}

absl::Status Run(const std::string& folder, const std::string& preset) {
  AQT_ASSIGN_OR_RETURN(const models::EncoderModel model, models::ModelFromFolder(io::LocalFileSystem(), folder));
  InjectConfig config;
  if (preset != "float") {
    AQT_ASSIGN_OR_RETURN(config, InjectConfigFromPreset(preset));
  }
  Programs programs;
  for (std::string line; std::getline(std::cin, line);) {
    AQT_RETURN_IF_ERROR(Answer(model, config, line, programs));
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace aqt

int main(int argc, char** argv) {
  int threads = 0;
  if (argc != 4 || !absl::SimpleAtoi(argv[3], &threads) || threads < 1) {
    std::cerr << "usage: encoder_times FOLDER PRESET THREADS\n";
    return 2;
  }
  std::optional<aqt::kernels::ThreadPool> pool;
  if (threads > 1) pool.emplace(threads);
  const aqt::UseExecutor use(pool.has_value() ? &*pool : nullptr);
  const absl::Status status = aqt::Run(argv[1], argv[2]);
  if (!status.ok()) std::cerr << "encoder_times: " << status.message() << "\n";
  return status.ok() ? 0 : 1;
}
