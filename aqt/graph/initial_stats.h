#ifndef AQT_GRAPH_INITIAL_STATS_H_
#define AQT_GRAPH_INITIAL_STATS_H_

#include "aqt/graph/program.h"

namespace aqt {

// First values for the inputs of kind stat that composites read: what these say (Composite::InitialStatistics). What
// else is of kind stat, such as the state of an optimizer, is not here.
SlotValues InitialStats(const Program& program);

}  // namespace aqt

#endif  // AQT_GRAPH_INITIAL_STATS_H_
