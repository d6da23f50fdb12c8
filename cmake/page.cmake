# mk_page.c: the page of `mkvm trace -o out.html` as C arrays.
set(MK_PAGE ${PROJECT_SOURCE_DIR}/tools/profiler/page)
# In the order in which the page runs them.
set(MK_PAGE_SCRIPTS ${MK_PAGE}/data.js ${MK_PAGE}/view.js ${MK_PAGE}/raster.js ${MK_PAGE}/chart.js ${MK_PAGE}/panel.js
                    ${MK_PAGE}/input.js ${MK_PAGE}/main.js)
string(REPLACE ";" "," MK_PAGE_SCRIPT_LIST "${MK_PAGE_SCRIPTS}")
add_custom_command(
  OUTPUT ${PROJECT_BINARY_DIR}/mk_page.c
  COMMAND ${CMAKE_COMMAND} -DPAGE=${MK_PAGE}/page.html -DSTYLE=${MK_PAGE}/page.css -DSCRIPTS=${MK_PAGE_SCRIPT_LIST}
          -DOUTPUT=${PROJECT_BINARY_DIR}/mk_page.c -P ${PROJECT_SOURCE_DIR}/cmake/embed_page.cmake
  DEPENDS ${MK_PAGE}/page.html ${MK_PAGE}/page.css ${MK_PAGE_SCRIPTS} ${PROJECT_SOURCE_DIR}/cmake/embed_page.cmake
  VERBATIM)
