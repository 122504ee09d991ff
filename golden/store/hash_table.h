// hashes.tsv: what a case's tensors hash to. One line per case and part (its inputs, then each profile), tabs
// between: case, part, then `slot=TYPE[shape]:hash` of every tensor.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "golden/store/golden_case.h"

namespace touchstone {

/// By slot.
using PartDigests = std::map<std::string, TensorDigest, std::less<>>;
/// By part.
using CaseDigests = std::map<std::string, PartDigests, std::less<>>;
/// By case text.
using HashTable = std::map<std::string, CaseDigests, std::less<>>;

CaseDigests digests_of(const CaseTensors& tensors);

/// The value of `key`; null where the map has none.
template <class Map>
const typename Map::mapped_type* value_of(const Map& map, const std::string& key) {
    const auto found = map.find(key);
    return found == map.end() ? nullptr : &found->second;
}

std::string hash_table_text(const HashTable& table);
/// Throws UserError, naming `where` and the line, for a text that hash_table_text does not write.
HashTable parse_hash_table(std::string_view text, const std::string& where);

}  // namespace touchstone
