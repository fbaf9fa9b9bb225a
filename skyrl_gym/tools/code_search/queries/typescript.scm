(class_declaration name: (type_identifier) @name (class_heritage)? @bases) @class
(abstract_class_declaration name: (type_identifier) @name (class_heritage)? @bases) @class
(interface_declaration name: (type_identifier) @name (extends_type_clause)? @bases) @interface
(type_alias_declaration name: (type_identifier) @name) @type
(enum_declaration name: (identifier) @name) @enum
(internal_module name: (identifier) @name) @module_scope
(function_signature name: (identifier) @name) @function
(method_signature name: (property_identifier) @name) @method
(abstract_method_signature name: (property_identifier) @name) @method
(public_field_definition name: (property_identifier) @name value: [(arrow_function) (function_expression)]) @method
(decorator [(identifier) @call (call_expression function: (identifier) @call)])
