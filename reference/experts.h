// Routed and shared experts and their sum (spec: text model, 9.2 and 9.3).
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "reference/linear.h"
#include "reference/moe_gate.h"

namespace touchstone {

/// w1 [I, D] gate branch, w3 [I, D] up branch, w2 [D, I] down.
struct RoutedExpertWeights {
    Fp4Weight w1, w2, w3;
};
struct SharedExpertWeights {
    Fp8Weight w1, w2, w3;
};

/// What goes into w2: bf16(silu(min(g, limit)) * clamp(u, -limit, limit) * weight), fp32 until the end.
/// `weights` holds one per row, applied before w2 and so inside its quantisation; empty (shared expert): no
/// product. `gate`, `up` and `y` are [rows, I].
void swiglu(std::span<const Bf16> gate, std::span<const Bf16> up, int64_t rows, float limit,
            std::span<const float> weights, std::span<Bf16> y);

/// One expert on its rows: y = w2 . swiglu(w1 . x, w3 . x).
void routed_expert(Arithmetic arithmetic, std::span<const Bf16> x, int64_t rows,
                   const RoutedExpertWeights& expert, std::span<const float> weights, float limit,
                   std::span<Bf16> y);
void shared_expert(Arithmetic arithmetic, std::span<const Bf16> x, int64_t rows,
                   const SharedExpertWeights& expert, float limit, std::span<Bf16> y);

struct ExpertsResult {
    std::vector<Bf16> shared;  ///< [rows, D]
    std::vector<Bf16> out;     ///< [rows, D]
};

/// All experts of a layer: each routed expert runs once, on the rows that chose it; a row's outputs are added
/// in fp32 by ascending expert id from 0, the shared expert last, and rounded to bf16 once. `expert(id)` is
/// asked for chosen experts only, once each. Throws UserError when sizes do not match.
ExpertsResult experts(Arithmetic arithmetic, std::span<const Bf16> x, const Routing& routing,
                      const std::function<RoutedExpertWeights(int32_t)>& expert,
                      const SharedExpertWeights& shared, float limit);

}  // namespace touchstone
