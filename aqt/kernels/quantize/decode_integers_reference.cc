#include "aqt/kernels/quantize/decode_integers_reference.h"

namespace aqt::kernels::reference {
namespace {

int CodeAt(const DecodeIntegersArgs& args, int64_t i) {
  if (args.layout == CodeLayout::kBytes) return static_cast<int8_t>(args.q[i]);
  const int64_t begin = args.layout == CodeLayout::kWords ? i * 32 + args.shift : i * args.bits;
  int code = 0;
  for (int b = 0; b < args.bits; ++b) {
    const int64_t bit = begin + b;
    code |= (args.q[bit / 8] >> bit % 8 & 1) << b;
  }
  return code;
}

}  // namespace

void DecodeIntegers(const DecodeIntegersArgs& args) {
  for (int64_t i = 0; i < args.n; ++i) {
    const int64_t g = args.group_of != nullptr ? args.group_of[i] : i / args.group;
    const float zero = args.zero != nullptr ? args.zero[g] : 0.0f;
    const float difference = static_cast<float>(CodeAt(args, i) - args.bias) - zero;
    const float product = difference * args.scale[g];
    args.x[i] = product * args.factor;
  }
}

void DecodeByMap(const DecodeByMapArgs& args) {
  for (int64_t i = 0; i < args.n; ++i) {
    const int64_t at = args.first + i;
    const uint8_t pair = args.q[at / 2 - args.first / 2];
    args.x[i] = args.map[at % 2 == 0 ? pair >> 4 : pair & 15] * args.scale[at / args.group - args.first / args.group];
  }
}

}  // namespace aqt::kernels::reference
