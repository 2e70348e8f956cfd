// A SearchRecord in plan.json. For the sources of ir/ only.
#pragma once

#include "ir/base/json_reader.h"
#include "ir/plan/search_record.h"

namespace pipeshard {

// Adds the keys "search", "alternatives", "reasons" and "stage_costs".
void addSearch(const SearchRecord& record, Json& document);
// Of a document that has "search". Error(kConfiguration) as JsonReader.
SearchRecord readSearch(const JsonReader& json);

}  // namespace pipeshard
