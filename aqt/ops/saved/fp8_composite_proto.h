#ifndef AQT_OPS_SAVED_FP8_COMPOSITE_PROTO_H_
#define AQT_OPS_SAVED_FP8_COMPOSITE_PROTO_H_

// The composites of the FP8 layers (fp8_scaling.h, fp8_dot.h) in saved programs. Internal; for composite_proto.cc.

#include "aqt/graph/composite.h"
#include "aqt/ops/saved/composite.pb.h"
#include "aqt/ops/saved/composite_values_proto.h"

namespace aqt::internal {

// Returns false, and leaves `out` unchanged, for any other operation.
bool SaveFp8(const Composite& op, saved::SavedComposite& out);

MadeComposite LoadFp8(const saved::SavedFp8Quantize& in);
MadeComposite LoadFp8(const saved::SavedFp8Update& in);
MadeComposite LoadFp8(const saved::SavedFp8Dot& in);
MadeComposite LoadFp8(const saved::SavedFp8Backward& in);

}  // namespace aqt::internal

#endif  // AQT_OPS_SAVED_FP8_COMPOSITE_PROTO_H_
