#ifndef AQT_TESTS_CHECKPOINT_CHECK_H_
#define AQT_TESTS_CHECKPOINT_CHECK_H_

// Converts reference checkpoints and compares the results with those of the compressed-tensors package. Each subfolder
// of a directory whose config.json has a quantization_config is a case. Its input is the subfolder `dense`, or
// `dense_bf16` if the case's name ends in "_bf16", or what its expected.json names as "input". Its scheme is its
// config.json, as with `aqt convert --scheme-from`. Its calibration.safetensors, if there is one, has the ranges of the
// activations. If the case is sharded, so is the output. All tensors of the output must equal the recorded ones byte
// for byte (those of another case, if expected.json names one as "tensors_are_those_of"), and the quantization_config
// must be equivalent: the same method, status and format, and the same scheme for each weight of the input.

#include <ostream>
#include <string>

#include "aqt/io/file.h"

namespace aqt {

// Prints a line per case that does not pass, then `passed N, failed N, not supported N`. Returns 1 if a case failed; 2
// if `golden_dir` cannot be read, has no case or lacks the input of one; else 0. Writes into `temporary_dir`, which
// must exist, and leaves it empty.
int CheckpointCheck(const io::FileSystem& fs, const std::string& golden_dir, const std::string& temporary_dir,
                    std::ostream& out);

}  // namespace aqt

#endif  // AQT_TESTS_CHECKPOINT_CHECK_H_
