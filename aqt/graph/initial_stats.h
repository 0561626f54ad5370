#ifndef AQT_GRAPH_INITIAL_STATS_H_
#define AQT_GRAPH_INITIAL_STATS_H_

#include "aqt/graph/program.h"

namespace aqt {

// Initial values for the inputs of kind stat that composites read, from Composite::InitialStatistics. Other inputs of
// kind stat, such as the state of an optimizer, are not included.
SlotValues InitialStats(const Program& program);

}  // namespace aqt

#endif  // AQT_GRAPH_INITIAL_STATS_H_
