#ifndef AQT_TESTS_FOREIGN_CHECK_H_
#define AQT_TESTS_FOREIGN_CHECK_H_

// Dequantizes checkpoints that other tools quantized, and compares the results with what those tools read.
//
// A sub-folder whose expected.json has the kind "dequantize" is a case: its model is dequantized to f32, bf16 and f16.
// Every weight that expected.json names must equal that of dequantized.safetensors as a number, rounded once; tensors
// under `unchanged` must keep their bytes, those under `consumed` must be gone, and there must be no others. The
// output's config.json must have no quantization_config, and the files that describe a quantization must be gone. The
// case fails unless a refusal is allowed (`pass_rule_edge`).
// Where there is a split.safetensors, dequantizing to bf16 with --experts split must give its tensors, byte for byte,
// instead of those of all experts.
// A sub-folder of the kind "split" is in floating point, and its experts are read as single weights: those of
// split.safetensors, if it has one, byte for byte, and the tensors under `unchanged`.
// The file ct/index.json has more cases: SET/FOLDER, where SET is one of `sets`; their weights are named with the
// SHA-256 of their f32 values.

#include <map>
#include <ostream>
#include <string>

#include "aqt/io/file.h"

namespace aqt {

// Prints a line per case that does not pass, then `passed N, failed N, not there N`. Returns 1 if a case failed; 2 if
// `golden_dir` cannot be read or has no case; else 0. `sets` are the folders of the cases of ct/index.json by name.
// Writes into `temporary_dir`, which must exist, and leaves it empty.
int ForeignCheck(const io::FileSystem& fs, const std::string& golden_dir,
                 const std::map<std::string, std::string>& sets, const std::string& temporary_dir, std::ostream& out);

}  // namespace aqt

#endif  // AQT_TESTS_FOREIGN_CHECK_H_
