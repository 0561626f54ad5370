#ifndef AQT_OPS_SAVED_COMPOSITE_PROTO_H_
#define AQT_OPS_SAVED_COMPOSITE_PROTO_H_

// Programs with the composites of this room as bytes (graph/saved/program_proto.h):
//
//   AQT_ASSIGN_OR_RETURN(std::string bytes, SaveProgram(program, ops::ProgramCodecs()));
//   AQT_ASSIGN_OR_RETURN(Program loaded, LoadProgram(bytes, ops::ProgramCodecs()));
//
// A composite is saved as a message of aqt/ops/saved/composite.proto, which has the fields of the composite
// (graph/composite_fields.h). Configurations are saved as in textprotos (quant/text). Loading plans the composite again
// and refuses anything that this library cannot produce.

#include "aqt/graph/saved/program_proto.h"

namespace aqt::ops {

// A codec for every composite of aqt/ops except exchanges between processes (collective_ops.h). Saving is Unimplemented
// for operands that are packed for this machine (aqt_pack, fp8_pack): save the program before it is prepared.
const CompositeCodecs& ProgramCodecs();

}  // namespace aqt::ops

#endif  // AQT_OPS_SAVED_COMPOSITE_PROTO_H_
