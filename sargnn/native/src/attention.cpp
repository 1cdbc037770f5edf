// What the walks of attention have in common, compiled once for each type of rows.
#include "attention.hpp"

namespace sargnn {

WALKS_OF(, float)
WALKS_OF(, double)
WALKS_OF(, bf16)
template struct Room<float>;
template struct Room<double>;
template struct Room<bf16>;

}  // namespace sargnn
